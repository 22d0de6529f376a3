from __future__ import annotations

import collections
import io
import os
import pickle
from decimal import Decimal

import numpy as np
import pytest

from fl.data.pickles import load
from fl.errors import DataError

PLAIN = {
    b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "labels": [1, 2, np.int64(3), np.float32(0.5)],
    "nested": (True, None, 1.5, {"a"}, frozenset([b"b"]), collections.OrderedDict(a=1)),
    "strings": np.array(["a", "bc"]),
    "objects": np.array([b"x", [1, 2]], dtype=object),
}


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_and_plain_containers(tmp_path, protocol):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(PLAIN, protocol))
    found = load(tmp_path / "a.pkl")
    assert np.array_equal(found[b"data"], PLAIN[b"data"])
    assert found["labels"] == PLAIN["labels"]
    assert found["nested"] == PLAIN["nested"]
    assert found["strings"].tolist() == ["a", "bc"]
    assert found["objects"].tolist() == [b"x", [1, 2]]


def test_names_of_both_numpys():
    text = pickle.dumps(np.arange(3), 2)
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    for module in (old, new):
        other = text.replace(old, module) if old in text else text.replace(new, module)
        assert load(io.BytesIO(other)).tolist() == [0, 1, 2]


def test_text_of_python_2():
    text = b"(dp0\nS'data'\np1\nS'\\xff'\np2\ns."  # {'data': '\xff'} of Python 2, protocol 0.
    assert load(io.BytesIO(text)) == {b"data": b"\xff"}
    assert load(io.BytesIO(text), encoding="latin1") == {"data": "\xff"}


class Evil:
    def __init__(self, call, *arguments):
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    ("thing", "named"),
    [
        (Evil(os.system, "touch hacked"), r"(posix|os)\.system"),
        (Evil(eval, "open('hacked', 'w')"), r"(builtins|__builtin__)\.eval"),
        (Evil(getattr, "a", "b"), r"(builtins|__builtin__)\.getattr"),
        (Evil(np.load, "x"), r"numpy\.\w*load|numpy\.lib\S*load"),
        (Evil(np.memmap, "hacked"), r"numpy\.memmap"),
        (Decimal(1), r"decimal\.Decimal"),
        (np.array([Evil(os.system, "touch hacked")], dtype=object), r"(posix|os)\.system"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_everything_else_is_refused_by_name(tmp_path, monkeypatch, thing, named, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"data": thing}, protocol))
    with pytest.raises(DataError, match=rf"a\.pkl: asks for {named}; allowed in a pickle: numpy"):
        load(tmp_path / "a.pkl")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize("keep", [0, 1, 20, -1])
def test_damaged_pickle_is_named(tmp_path, keep):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(PLAIN)[:keep])
    with pytest.raises(DataError, match=r"a\.pkl: is no complete pickle"):
        load(tmp_path / "a.pkl")
