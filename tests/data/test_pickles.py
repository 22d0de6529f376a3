from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import random
import struct
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest

from fl.base.errors import DataError
from fl.data.readers.pickles import load_pickle

PLAIN = {
    b"data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "by columns": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
    "labels": [1, 2, np.int64(3), np.float32(0.5)],
    "nested": (True, None, 1.5, -7, 2**40, {"a": b"b", 3: ["c"] * 3}, (), "\u00e4\n"),
    "strings": np.array(["a", "bc"]),
    "bytes": np.array([b"a", b"bc"]),
    "objects": np.array([b"x", [1, 2]], dtype=object),
    "none": np.empty((0, 5), np.float64),
    "one": np.array(3),
}


def same(one, other):
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    return type(one) is type(other) and one == other


@pytest.mark.parametrize("protocol", range(5))
def test_arrays_and_plain_containers(tmp_path, protocol):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(PLAIN, protocol))
    found = load_pickle(tmp_path / "a.pkl")
    assert list(found) == list(PLAIN)
    assert found["objects"] == [b"x", [1, 2]]
    assert all(same(found[key], PLAIN[key]) for key in PLAIN if key != "objects")


def test_names_of_both_numpys():
    text = pickle.dumps(np.arange(3), 2)
    old, new = b"numpy.core.multiarray", b"numpy._core.multiarray"
    for module in (old, new):
        other = text.replace(old, module) if old in text else text.replace(new, module)
        assert load_pickle(io.BytesIO(other)).tolist() == [0, 1, 2]


def of_python_2(labels=(6, 9), width=12):
    """A batch in the very instructions that Python 2 and numpy 1 wrote CIFAR's files with."""

    def text(value, put):
        return b"U" + bytes([len(value)]) + value + b"q" + bytes([put])

    content = bytes(n % 256 for n in range(len(labels) * width))
    parts = (
        (b"\x80\x02}q\x01(", text(b"batch_label", 2), text(b"training batch 1 of 5", 3)),
        (text(b"labels", 4), b"]q\x05(", *(b"K" + bytes([n]) for n in labels), b"e"),
        (text(b"data", 6), b"cnumpy.core.multiarray\n_reconstruct\nq\x07"),
        (b"cnumpy\nndarray\nq\x08K\x00\x85", text(b"b", 9), b"\x87Rq\x0a(K\x01"),
        (b"K", bytes([len(labels)]), b"M", struct.pack("<H", width), b"\x86cnumpy\ndtype\nq\x0b"),
        (text(b"u1", 12), b"K\x00K\x01\x87Rq\x0d(K\x03", text(b"|", 14), b"NNN"),
        (b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",),
        (b"T", struct.pack("<i", len(content)), content, b"tb", text(b"filenames", 15)),
        (b"]q\x10(", text(b"a.png", 17), text(b"b.png", 18), b"eu."),
    )
    return b"".join(piece for part in parts for piece in part)


def test_a_batch_as_python_2_wrote_it():
    found = load_pickle(io.BytesIO(of_python_2()))
    assert list(found) == [b"batch_label", b"labels", b"data", b"filenames"]
    assert found[b"labels"] == [6, 9]
    assert same(found[b"data"], np.arange(24, dtype=np.uint8).reshape(2, 12))
    assert found[b"filenames"] == [b"a.png", b"b.png"]
    usual = pickle.loads(of_python_2(), encoding="bytes")
    assert all(same(found[key], usual[key]) for key in usual)


class Evil:
    def __init__(self, call, *arguments, state=None):
        self.reduced = (call, arguments) if state is None else (call, arguments, state)

    def __reduce__(self):
        return self.reduced


OUTSIDE = [
    (Evil(os.system, "touch hacked"), r"(posix|os)\.system"),
    (Evil(eval, "open('hacked', 'w')"), r"(builtins|__builtin__)\.eval"),
    (Evil(getattr, "a", "b"), r"(builtins|__builtin__)\.getattr"),
    (Evil(np.load, "x"), r"numpy\.\w*load|numpy\.lib\S*load"),
    (Evil(np.memmap, "hacked"), r"numpy\.memmap"),
    (Decimal(1), r"decimal\.Decimal"),
    (collections.OrderedDict(a=1), r"collections\.OrderedDict"),
    (np.array([Evil(os.system, "touch hacked")], dtype=object), r"(posix|os)\.system"),
    # An array of dtype O made from bytes: numpy takes them for addresses.
    (Evil(np.ndarray, (1,), "O8", b"AAAAAAAA"), r"a value that is no data \(StandIn\)"),
    (np.zeros(2, [("a", "i4"), ("b", "O")]), r"an array of type 'V12'"),
    (np.zeros(2, bool), r"an array of type 'b1'"),
    (np.zeros(2, "M8[s]"), r"an array of type 'M8'"),
]


@pytest.mark.parametrize(("thing", "named"), OUTSIDE)
@pytest.mark.parametrize("protocol", [0, 4])
def test_everything_else_is_refused_by_name(tmp_path, monkeypatch, thing, named, protocol):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"data": thing}, protocol))
    with pytest.raises(
        DataError,
        match=rf"a\.pkl: asks for ({named}); no code of it was run. Allowed: in a pickle numpy",
    ):
        load_pickle(tmp_path / "a.pkl")
    assert not (tmp_path / "hacked").exists()


BLANK = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"


def kind(code, order=b"<"):
    text = b"U" + bytes([len(code)]) + code
    state = b"(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return b"cnumpy\ndtype\n" + text + b"K\x00K\x01\x87R" + state


def state(shape, code, content):
    """An array given its state: what it holds is bytes, or an instruction of its own."""
    content = b"B" + struct.pack("<I", len(content)) + content if content != b"]" else content
    sizes = b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", n) for n in shape) + b"t"
    return BLANK + b"(K\x01" + sizes + kind(code) + b"\x89" + content + b"tb."


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (state((1,), b"O8", b"AAAAAAAA"), r"asks for an array of objects \[1\] that is no list"),
        (state((2,), b"O8", b"]"), r"asks for an array of objects \[2\] that is no list"),
        (state((2**62, 4), b"u1", b""), "uint8 has other bytes"),
        (state((-1,), b"u1", b""), "an array has no type, or no shape"),
        (state((1,), b"U1", b"\xff\xff\xff\xff"), "UnicodeDecodeError"),
        (state((1,), b"V8", b"AAAAAAAA"), "asks for an array of type 'V8'"),
        (BLANK + b".", "asks for a value that is no data"),
        (b"cnumpy\nndarray\n.", "asks for a value that is no data"),
        # What is named is handed a state, by which a class or a function could be changed.
        (b"cnumpy\nndarray\nN}(X\x05\0\0\0_makeNu\x86b.", "is no complete pickle .*__setstate__"),
        (b"]q\x00h\x00a.", "values deeper than 8"),
        (b"}(" + b"(t" + b"Nd.", "asks for a value that is no data"),
        (b"Nr\xff\xff\xff\xff.", "it numbers a value 4,294,967,295"),
        (b"\x8e" + struct.pack("<Q", 2**62), "is no complete pickle"),
        (b"cnumpy\nndarray\n)\x81.", "asks for a value that is no data"),
    ],
)
def test_what_would_crash_or_fill_the_memory_is_an_error(text, problem):
    tracemalloc.start()
    with pytest.raises(DataError, match=problem):
        load_pickle(io.BytesIO(text))
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("keep", [0, -1])
def test_damaged_pickle_is_named(tmp_path, keep):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(PLAIN, 4)[:keep])
    with pytest.raises(DataError, match=r"a\.pkl: is no complete pickle"):
        load_pickle(tmp_path / "a.pkl")


CODES = [ord(code.code) for code in pickletools.opcodes]


def mutated(text, draw):
    """A few bytes changed, taken out, put in or said twice; instructions more often than noise."""
    found = bytearray(text)
    for _ in range(draw.randint(1, 2)):
        at, length = draw.randrange(len(found)), draw.randint(1, 8)
        codes = bytes(draw.choices(CODES, k=length))
        change = draw.randrange(5)
        if change == 0:
            found[at] ^= 1 << draw.randrange(8)
        elif change == 1:
            del found[at : at + length]
        elif change == 2:
            found[at : at + length] = codes
        elif change == 3:
            found[at:at] = found[at : at + 4 * length]
        else:
            found[at : at + length] = draw.randbytes(length)
    return bytes(found)


def walk(value):
    """Touch everything, as a reader would: a wrong address would be met here."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        for part in value:
            walk(part)
    else:
        assert not isinstance(value, np.ndarray) or value.dtype.kind in "iufSU"
        repr(value.tolist() if isinstance(value, np.ndarray) else value)


def test_mutated_files_are_an_error_or_data():
    few = {key: PLAIN[key] for key in (b"data", "labels", "strings", "objects")}
    whole = [of_python_2(), *(pickle.dumps(few, protocol) for protocol in (0, 2, 3, 4))]
    draw, read = random.Random(0), 0
    for n in range(1500):
        try:
            found = load_pickle(io.BytesIO(mutated(whole[n % len(whole)], draw)))
        except DataError:
            continue
        walk(found)
        read += 1
    assert 75 < read < 1_425
