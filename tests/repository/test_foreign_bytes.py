"""Whatever bytes lie where a file is read: one message or a right answer, never a traceback.

Valid files are mutated by keyed draws: bytes flipped, cut, doubled, put in; values of their
structure exchange for what nobody means. What is read nonetheless has to hold what its reader
promises.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import signal
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import make_results
import numpy as np
import pandas as pd
import planning
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shelving
import torch
import yaml

from fl.base import dataclass_json, files
from fl.base.errors import FedloomError, Location
from fl.data import partition_table
from fl.data.prepared import Prepared, Writer
from fl.engine.evaluate import metrics_table
from fl.plan import bundle as bundles
from fl.plan import config, plan, plan_files, published_tables
from fl.store import checkpoint, run_check
from fl.store.store import Store
from fl.workflow import status

AT = Location("study.yaml", "here")
SECONDS = 10

STRANGE: list[Any] = [
    *(None, True, 0, -1, 1.5, 10**30, 2**63, float("nan"), float("inf"), "", "x", "../x", "a/b"),
    *("nan", "\0", "é" * 300, [], {}, [[]], {"": 0}, [0], ["x"], {"name": 3}, [{}], [None]),
    "\ud800",
]
"""Values that stand in place of a right one."""
TOKENS = [
    *("[", "]", "{", "}", ": ", "- ", "&a ", "*a", "<<: ", "!!set "),
    *("010", "1:30", "1_0", "'", '"'),
    *("\n", "\t", "#", "?", "|", ",", "\0", "é", "\\ud800", "nan", ".inf", "-1", "1e999", "~"),
    *("9" * 5000, "[" * 3000, "{a: " * 3000, "x" * 200_000),
]
"""Texts that are put into a text."""


def random_bytes(content: bytes, draw: random.Random) -> bytes:
    """One or two mutations that know nothing of what the bytes mean."""
    for _ in range(draw.choice([1, 1, 2])):
        here, there = sorted(draw.randrange(len(content) + 1) for _ in range(2))
        kind = draw.randrange(6)
        if kind == 0 and content:
            at = draw.randrange(len(content))
            content = (
                content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
            )
        elif kind == 1:
            content = content[:here]
        elif kind == 2:
            content = content[:there] + content[here:]
        elif kind == 3:
            content = content[:here] + content[there:]
        elif kind == 4:
            content = content[:here] + draw.choice(TOKENS).encode() + content[here:]
        else:
            content = content[:here] + draw.randbytes(draw.randrange(1, 9)) + content[there:]
    return content


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all values within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inner:
        yield (*above, key)
        if isinstance(one, dict | list):
            yield from places(one, (*above, key))


def strange(value: Any, draw: random.Random) -> Any:
    """A JSON-like value of which something is exchange, left out or added."""
    value = copy.deepcopy(value)
    *above, last = draw.choice(list(places(value)))
    home = value
    for key in above:
        home = home[key]
    kind = draw.randrange(5)
    if kind == 0:
        del home[last]
    elif kind == 1 and isinstance(home, dict):
        home[draw.choice(["x", "", "name", "é" * 300])] = home.pop(last)
    else:
        home[last] = copy.deepcopy(draw.choice(STRANGE))
    return value


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Whoever takes longer hangs."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Reader:
    """A file, how to read it, and how to mutate what it means.

    read: raises `FedloomError`, or returns what holds (it asserts so itself). meant: content with
    its structure intact but something in it strange.
    """

    path: Path
    read: Callable[[], Any]
    meant: Callable[[random.Random], bytes]
    rounds: int = 60


def told(reader: Reader) -> str:
    """Read; the message if it is refused."""
    with at_once():
        try:
            reader.read()
        except FedloomError as error:
            message = str(error)
            assert message
            return message
    return ""


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def json_reader(path: Path, read: Callable[[], Any], rounds: int = 60) -> Reader:
    value = json.loads(path.read_bytes())
    return Reader(path, read, lambda draw: as_json(strange(value, draw)), rounds)


# Config


def settings(root: Path) -> Reader:
    folder = planning.write_config(root)
    path = folder / "config.yaml"
    value = yaml.safe_load(path.read_text())
    return Reader(
        path,
        lambda: config.read_settings(folder),
        lambda d: yaml.dump(strange(value, d)).encode(),
        150,
    )


def study(root: Path) -> Reader:
    """Planned to the end, as a value that nobody uses harms nobody."""
    methods = {"fedprox": {"mu": [0.1, 1]}, "ft": {"method": "finetune", "start": "fedprox"}}
    folder = planning.write_config(root, {"methods": methods, "execution": {"minutes": 3}})
    path = folder / "studies" / "tiny.yaml"
    value = yaml.safe_load(path.read_text())

    def read() -> None:
        bundles = [dataclass_json.as_json(each) for each in plan.make(folder).bundles.values()]
        json.dumps(bundles, allow_nan=False).encode()

    return Reader(path, read, lambda d: yaml.dump(strange(value, d)).encode())


def method(root: Path) -> Reader:
    folder = planning.write_config(root, {"methods": {"fedprox": None}})
    path = folder / "methods" / "fedprox.yaml"
    value = {"mu": 0.1, "lr": [0.1, 0.2], "execution": {"threads": 2}, "local_epochs": 2}
    path.write_text(yaml.dump(value))
    return Reader(
        path, lambda: plan.make(folder), lambda d: yaml.dump(strange(value, d)).encode(), 30
    )


def numbers(root: Path) -> Reader:
    path = root / "published" / "a.csv"
    path.parent.mkdir()
    lines = ["table,row,column,value,sd,note", "1,A,B,71.2,0.5,", '1,A,C,2,,"a, b"', "2,A,B,3,,"]
    path.write_text("\n".join(lines) + "\n")

    def read() -> None:
        cells = published_tables.read_table(root, "a.csv", "1", AT)
        assert all(np.isfinite(cell.value) for cell in cells.values())
        assert all(cell.sd is None or cell.sd >= 0 for cell in cells.values())

    def meant(draw: random.Random) -> bytes:
        cells = [line.split(",") for line in lines]
        row = draw.choice(cells)
        row[draw.randrange(len(row))] = str(
            draw.choice([*STRANGE, *TOKENS, "1_0", "71%", "\u0667"])
        )
        cells += draw.choice([[], [row], cells])
        return "\n".join(map(",".join, cells)).encode(errors="surrogatepass")

    return Reader(path, read, meant, 300)


# Parquet


def strange_table(table: pd.DataFrame, draw: random.Random) -> bytes:
    """A whole Parquet file of which a column is lacking, twice, of another kind or out of range."""
    made = pa.Table.from_pandas(table, preserve_index=False)
    name = draw.choice(made.column_names)
    place, column = made.column_names.index(name), made.column(name)
    kind = draw.randrange(6)
    if kind == 0:
        made = made.remove_column(place)
    elif kind == 1:
        made = made.append_column(name, column)
    elif kind == 2:
        made = made.slice(0, 0)
    elif kind == 3:
        metadata = {b"fedloom.notes": draw.choice([b"{", b"3", b"[3]", b"\xff", b"[" * 5000])}
        made = made.replace_schema_metadata(metadata)
    else:
        values = column.to_pylist()
        values[draw.randrange(len(values))] = draw.choice(
            [None, -1, 2**40, 1e300, float("nan"), float("inf"), 5.0, "dev", b"\xff", [1], {"a": 1}]
        )
        with contextlib.suppress(pa.ArrowException, OverflowError):
            made = made.set_column(place, name, pa.array(values))
    sink = pa.BufferOutputStream()
    pq.write_table(made, sink)
    return bytes(sink.getvalue())


def partition(root: Path) -> Reader:
    path, labels = root / "mine.parquet", np.zeros(12, int)
    split = ["train", "test", "val"] * 4
    table = pd.DataFrame({"sample": range(12), "client": [0] * 6 + [1] * 6, "split": split})
    table["client"] = table["client"].astype("int32")
    table["unseen"] = table["client"] == 1
    table.attrs["notes"] = ["a note"]
    partition_table.write(table, path)

    def read() -> None:
        found = partition_table.read(path)
        partition_table.validate(found, labels, source=str(path))
        partition_table.content_hash(found)
        assert found["sample"].between(0, 11).all() and found["sample"].is_unique
        assert all(isinstance(note, str) for note in found.attrs["notes"])

    return Reader(path, read, lambda draw: strange_table(table, draw), 250)


def metrics(root: Path) -> Reader:
    path, record = root / "metrics.parquet", make_results.record(2)
    table = metrics_table(
        [
            (r, c, "test", "global", metric, 0.25, 10)
            for r in (1, 2)
            for c in range(3)
            for metric in ("accuracy", "loss")
        ]
    )
    files.write_table(path, table)

    def read() -> None:
        found, _ = files.read_parquet(path)
        run_check.joined_metrics([found], [record], [str(path)])
        share = found.loc[found["metric"] == "accuracy", "value"]
        assert share.between(0, 1).all() and np.isfinite(found["value"]).all()
        assert (found["client"] >= 0).all() and found["round"].max() == 2

    return Reader(path, read, lambda draw: strange_table(table, draw), 250)


# JSON


def record(root: Path) -> Reader:
    store = Store(root)
    run = shelving.add(store)
    path = root / run / "run.json"
    value = json.loads(path.read_bytes())
    del value["seal"]

    def read() -> None:
        if found := run_check.find_problems(store, run):
            raise FedloomError(found[0])
        assert store.record(run)["spec"] == value["spec"]

    def meant(draw: random.Random) -> bytes:
        """Strange, and rightly sealed."""
        made = json.loads(json.dumps(strange(value, draw)))
        return as_json({**made, "seal": files._seal(made)})

    return Reader(path, read, meant, 100)


def bundle(root: Path) -> Reader:
    path = planning.make(root).spec("fedavg")

    def read() -> None:
        found = bundles.read(path)
        list(bundles.missing_runs(found, Store(root / "runs")))
        status.run_statuses([found], Store(root / "runs"))

    return json_reader(path, read, 150)


def summary(root: Path) -> Reader:
    folder = planning.write_config(root)
    plan.write(plan.make(folder, to_write=True))
    path = root / "results" / "plan" / "plan.json"

    def read() -> None:
        for bundle in status.bundles(root / "results"):
            assert bundle.runs

    return json_reader(path, read, 150)


def planned_study(root: Path) -> Reader:
    folder = planning.write_config(root)
    plan.write(plan.make(folder, to_write=True))
    path = root / "results" / "plan" / "studies" / "tiny.json"
    return json_reader(path, lambda: plan_files.read_study(root / "results", "tiny"))


def description(root: Path) -> Reader:
    with Writer(root / "small") as writer:
        writer.save("x", np.zeros((4, 2), np.float32))
        writer.save("y", np.array([0, 1, 0, 1]))
        writer.describe(["a", "b"])
        sources = [{"name": "raw", "sha256": "0"}]
        writer.finish({"name": "small", "params": {"n": 3}, "sources": sources})
    path = root / "small" / "dataset.json"

    def read() -> None:
        found = Prepared.open(root / "small")
        assert found.x.shape == (4, 2) and found.y.tolist() == [0, 1, 0, 1]

    return json_reader(path, read, 150)


# Tensors


def tensors(root: Path) -> Reader:
    path = root / "final.safetensors"
    tree = {"a": {"w": torch.arange(6.0).reshape(2, 3).T, "n": torch.tensor(3)}, "b": {}}
    checkpoint.save_tree(tree, path)
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    layout = json.loads(header["__metadata__"]["tree"])

    def read() -> None:
        found = checkpoint.load_tree(path)
        assert all(isinstance(key, str) for key in found)
        if {"a"} <= {*found} and isinstance(found["a"], dict) and "w" in found["a"]:
            w = found["a"]["w"]
            # Every number has a place of its own.
            assert len({*w.storage_offset() + _offsets(w)}) == w.numel()

    def meant(draw: random.Random) -> bytes:
        made, tree = copy.deepcopy(header), copy.deepcopy(layout)
        if draw.random() < 0.7:
            strides = [[0, 0], [1, 1], [1, 2], [3, 1], [-1, 3], [2**62, 1], [1], [1.5, 1], "x"]
            others = [one for one in layout if one[0] != "a/w"]
            made_up = [["a/w", draw.choice(strides)], *others]
            tree = draw.choice([strange(tree, draw), made_up])
            text = json.dumps(tree)
            if draw.random() < 0.05:
                text = "[" * 100_000
            made["__metadata__"]["tree"] = text
        else:
            made = strange(made, draw)
        packed = json.dumps(made).encode()
        return struct.pack("<Q", len(packed)) + packed + rest

    return Reader(path, read, meant, 300)


def _offsets(tensor: torch.Tensor) -> np.ndarray:
    grid = np.indices(tuple(tensor.shape)).reshape(tensor.ndim, -1)
    return (grid * np.array(tensor.stride())[:, None]).sum(axis=0)


READERS = [
    *(settings, study, method, numbers, partition, metrics),
    *(record, bundle, summary, planned_study, description, tensors),
]


@pytest.mark.parametrize("make", READERS, ids=lambda make: make.__name__)
def test_a_message_or_a_right_answer(make: Callable[[Path], Reader], tmp_path: Path) -> None:
    reader = make(tmp_path)
    whole = reader.path.read_bytes()
    assert told(reader) == "", "the file that the others spoil is right"
    refused = 0
    for number in range(reader.rounds):
        draw = random.Random(f"{make.__name__} {number}")
        content = reader.meant(draw) if number % 2 else random_bytes(whole, draw)
        reader.path.write_bytes(content)
        try:
            refused += bool(told(reader))
        except BaseException:
            print(f"mutation {number}: {content[:2000]!r}")
            raise
    reader.path.write_bytes(whole)
    assert told(reader) == ""
    assert refused > reader.rounds / 10
