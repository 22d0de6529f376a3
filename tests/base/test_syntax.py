"""Edits that change the hash of a file, and edits that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl.base import syntax

METHOD = '''"""A method."""

from fl.api import training


class Method:
    """It has a rate."""

    rate = 0.5
    """Its rate."""

    def step(self, x):
        """One step."""
        return training.loss(x) * self.rate  # down
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ('"""A method."""', '"""Another docstring,\n\nlonger."""', True),
        ('    """Its rate."""\n', '    """Its learning rate."""\n', True),
        ("  # down", "  # up", True),
        ("training.loss(x) * self.rate", "(\n            training.loss(x)\n * self.rate)", True),
        ("0.5", "0.50", True),
        ("0.5", "0.25", False),
        ("(self, x)", "(self, x=None)", False),
        ("0.5", '"a text that is used"', False),
    ],
)
def test_words_and_layout_leave_the_hash(tmp_path: Path, old: str, new: str, same: bool) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    assert METHOD.count(old) == 1
    before.write_text(METHOD)
    after.write_text(METHOD.replace(old, new))
    assert (syntax.hash_code(before) == syntax.hash_code(after)) == same


OWN = '''"""A module."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fl.base.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)


class Pair(NamedTuple):
    first: int = 0


@keys
def scheme(labels: Any, *, alpha: float = 0.5) -> int:
    return 1


def scaled(values: Sequence[float], *, factor: float = 2.0) -> Mapping[str, Tensor]:
    first: float = values[0]
    if not first:
        raise DataError(f"{first}: is zero", "above 0") from None
    log.info("%d values", len(values))
    return {"first": first * factor}
'''


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("values: Sequence[float],", "values,", True),
        (" -> Mapping[str, Tensor]:", ":", True),
        ("first: float = values", "first = values", True),
        ("import Mapping, Sequence", "import Iterable, Mapping, Sequence", True),
        ("    from torch import Tensor", "    from numpy import ndarray as Tensor", True),
        ('f"{first}: is zero", "above 0"', 'f"{first} is 0", "more"', True),
        ('"%d values"', '"%d numbers"', True),
        # What code may read, or what decides a number.
        ("first: int = 0", "first: float = 0", False),
        ("labels: Any", "labels: list[int]", False),
        ("factor: float", "factor: int", False),
        ("alpha: float", "alpha: int", False),
        ('{"first": first', '{"second": first', False),
        ("DataError(f", "ValueError(f", False),
        ("Any, NamedTuple", "Any, TypedDict as NamedTuple", False),
        ("len(values))", "len(values) + 1)", False),
        ("from __future__ import annotations", "", False),
    ],
)
def test_types_and_texts_of_errors_leave_the_hash_of_own_code(
    tmp_path: Path, old: str, new: str, same: bool
) -> None:
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    assert OWN.count(old) == 1
    before.write_text(OWN)
    after.write_text(OWN.replace(old, new))
    assert (syntax.hash_code(before, True) == syntax.hash_code(after, True)) == same
    assert syntax.hash_code(before) != syntax.hash_code(after), "in a plugin, all of it counts"


def test_hints_that_are_evaluated_count(tmp_path: Path) -> None:
    paths = tmp_path / "before.py", tmp_path / "after.py"
    paths[0].write_text("def f(x: int):\n    return x\n")
    paths[1].write_text("def f(x):\n    return x\n")
    assert len({syntax.hash_code(path, True) for path in paths}) == 2
