"""Values that are written in several ways, such as ``0`` and ``0.0``, or ``True`` and ``TRUE``."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from fl.base.errors import DataError, quoted_names

NUMBER_TEXT = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-][0-9]{1,3})?")
"""Numbers; an exponent has a sign, which distinguishes it from hexadecimal ids such as 10e1."""
TRUTH_NUMBERS = {"false": "0", "true": "1"}
MAX_LISTED_VALUES = 20
"""Largest number of values whose spellings a message lists."""


def check_spellings(file: object, key: str, values: Iterable[str]) -> None:
    """Raise a `DataError` for values that are spellings of one value.

    These are numbers of equal value, and texts that differ in blanks, in invisible characters, in
    the forms of a character or, if they have two letters or more, in being small, capitalised or
    capitals.

    Args:
        file: Path or name of the file, for errors.
        key: What has the values, for errors.
        values: The different values.
    """
    spellings: dict[str | Decimal, list[str]] = defaultdict(list)
    for value in values:
        spellings[_normal_form(value)].append(value)
    repeated = [" and ".join(quoted_names(texts)) for texts in spellings.values() if len(texts) > 1]
    if repeated:
        unlisted = ", ..." if len(repeated) > MAX_LISTED_VALUES else ""
        listed = ", ".join(repeated[:MAX_LISTED_VALUES]) + unlisted
        problem = f"{file}: {key} has one value in several spellings: {listed}"
        advice = "write the value in one spelling; if there are two values, rename one of them"
        raise DataError(problem, advice=advice)


def _normal_form(value: str) -> str | Decimal:
    """Return what is equal for all spellings of a value."""
    visible = "".join(letter for letter in value if unicodedata.category(letter) != "Cf")
    text = " ".join(unicodedata.normalize("NFKC", visible).split())
    number = TRUTH_NUMBERS.get(text.casefold(), text)
    if NUMBER_TEXT.fullmatch(number):
        return Decimal(number)
    # Of single letters, and of ids such as aZ3x, each case may be a value of its own.
    forms = (text.lower(), text.upper(), text.capitalize(), text.title())
    return text.casefold() if len(text) > 1 and text in forms else text
