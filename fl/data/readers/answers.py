"""Search for columns that give the answer away: what a model is to predict, in other words.

Such a column is left in a table by mistake, as the label beside its number. A model that reads it
learns nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np


class AnswerSearch:
    """Search for features that equal labels or targets, or stand one to one for labels.

    Two columns of different numbers stand one to one for each other by nature, so that a feature
    gives a target away only if both are equal.

    Attributes:
        answer: Column of labels or targets.
    """

    def __init__(self, answer: str, features: Iterable[str]) -> None:
        self.answer = answer
        self._pairs = {name: _Pairs() for name in features}

    def add(self, piece: Mapping[str, np.ndarray]) -> None:
        """Read a piece of rows; features that do not give the answer away are no longer read."""
        answers = piece[self.answer]
        for name in [*self._pairs]:
            if not self._pairs[name].add(piece[name], answers):
                del self._pairs[name]

    @property
    def notes(self) -> list[str]:
        """A note for each feature that gives the answer away."""
        return [
            f"the feature {name!r} {'equals' if pairs.are_equal else 'stands one to one for'} "
            f"{self.answer!r}, so that nothing else need be learnt. Try: `drop: [{name}]`, if it "
            "is not known beforehand"
            for name, pairs in self._pairs.items()
        ]


class _Pairs:
    """Pairs of a feature's value and an answer.

    Attributes:
        are_equal: Whether value and answer are equal in all rows.
    """

    def __init__(self) -> None:
        self.are_equal = True
        self._answer_by_value: dict[object, object] = {}
        self._value_by_answer: dict[object, object] = {}

    def add(self, values: np.ndarray, answers: np.ndarray) -> bool:
        """Add rows; return whether values still give answers away."""
        self.are_equal = self.are_equal and np.array_equal(values, answers)
        if answers.dtype != object:
            return self.are_equal
        for value, answer in zip(values.tolist(), answers.tolist(), strict=True):
            is_known = self._answer_by_value.setdefault(value, answer) == answer
            if not is_known or self._value_by_answer.setdefault(answer, value) != value:
                return False
        return True
