"""What changes the hash of a file and what does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from fl.base import hashes

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
    assert (hashes.hash_code(before) == hashes.hash_code(after)) == same
