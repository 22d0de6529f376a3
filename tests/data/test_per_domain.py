from __future__ import annotations

import numpy as np
import pytest

from fl.data.per_domain import counted, stated
from fl.data.placing import TEST, TRAIN, VAL


def test_samples_are_counted_by_domain_and_split():
    domain = np.array([0, 0, 0, 2, 2, 0])
    split = np.array([TRAIN, TRAIN, TEST, VAL, VAL, VAL])
    expected = {"a train": 2, "a val": 1, "a test": 1, "b train": 0, "b val": 0, "b test": 0}
    expected |= {"c train": 0, "c val": 2, "c test": 0}
    assert counted(domain, split, ("a", "b", "c")) == expected
    assert stated({"a": (2, 1, 1), "b": (0, 0, 0), "c": (0, 2, 0)}) == expected
    parts = ("train", "test")
    assert counted(domain, split, ("a",), parts) == {"a train": 2, "a test": 1}
    assert stated({"a": (2, 1)}, parts) == {"a train": 2, "a test": 1}
    with pytest.raises(ValueError, match="zip"):
        stated({"a": (2, 1)})
