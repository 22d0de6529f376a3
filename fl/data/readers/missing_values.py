"""Values that say that there is none: texts of an empty cell, and numbers such as -1."""

from __future__ import annotations

from collections.abc import Callable, Collection
from decimal import Decimal

from fl.base.errors import DataError
from fl.data.readers.spellings import NUMBER_TEXT

EMPTY_CELLS = {
    *("", "?", "NaT", "nan", "NaN", "-nan", "-NaN", "NA", "<NA>", "#NA", "N/A", "n/a", "#N/A"),
    *("NULL", "null", "None", "#N/A N/A", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"),
}
"""Texts of an empty cell, without surrounding blanks: those of pandas, and the question mark."""

ALLOWED = "words, numbers from 0 on, or two numbers in all, such as -1 and 1"
ADVICE = (
    "leave these samples out (in a table, empty these cells and write `missing: drop`); or, if it "
    "is a name of its own, write it in letters"
)


def check_missing_codes(
    file: object, key: str, values: Collection[str], place: Callable[[str], str]
) -> None:
    """Raise a `DataError` for a number that stands for a missing name, such as -1.

    This is a whole number below 0 among names that are no numbers, or among three numbers or more:
    classes and clients are counted from 0 or 1. Two numbers, such as -1 and 1, are two classes.

    Args:
        file: Path or name of the file, for errors.
        key: What has the values, for errors.
        values: The different labels, clients or groups.
        place: Returns where a value is first, such as ``row 3``; called for an error alone.

    Raises:
        DataError: For the smallest such number.
    """
    numbers = {value: Decimal(value) for value in values if NUMBER_TEXT.fullmatch(value)}
    codes = [value for value, number in numbers.items() if number < 0 and number % 1 == 0]
    if codes and not len(values) == len(numbers) <= 2:
        code = min(codes, key=numbers.__getitem__)
        problem = f"{file}: {key} has {code}, as for a missing value, first in {place(code)}"
        raise DataError(problem, ALLOWED, ADVICE)
