"""From a world's name to its fingerprint: few numbers that move when any number of the world does.

Of a run: the training loss of each client in each round, and for each round, stage and tree of
weights a norm and random projections, in which nothing cancels. Projections are keyed by the names
of rows and leaves, so that their order is free. Of data: shapes, types and hashes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from golden import adapter, worlds

Fingerprint = dict[str, Any]
"""``text`` must be equal, ``numbers`` near."""

DIGITS = 12
KINDS = {"data": "data set", "scheme": "partition scheme"}
"""What the registry calls the first word of a world's name, where that is another."""


@cache
def names() -> tuple[str, ...]:
    """All worlds, in the order in which they are kept."""
    return (*_runs(), *_dealt(), *_read())


def world(name: str) -> dict[str, Any]:
    """A run's world; {} of data."""
    return _runs().get(name, {})


@cache
def _runs() -> dict[str, worlds.World]:
    return dict(worlds.runs())


@cache
def _dealt() -> dict[str, tuple[str, worlds.World]]:
    found = {}
    for scheme, several in worlds.SCHEMES.items():
        for number, values in enumerate(several):
            found[f"scheme {scheme}: {number}"] = scheme, values
        if scheme != "file":
            for number, values in enumerate(worlds.SPLITS):
                found[f"scheme {scheme}: split {number}"] = scheme, {**several[0], **values}
    return found


@cache
def _read() -> dict[str, tuple[str, worlds.World]]:
    return {
        f"data {name}: {number}": (name, values)
        for name in adapter.names("data set")
        for number, values in enumerate(worlds.DATA_SETS.get(name, [{}]))
    }


def fingerprint(name: str) -> Fingerprint:
    """The numbers of a world."""
    if name in _runs():
        found = _of_run(_runs()[name])
    elif name in _dealt():
        found = _of_scheme(*_dealt()[name])
    else:
        found = _of_data(*_read()[name])
    return {"world": definition(name), **found}


def definition(name: str) -> str:
    """A hash of what a world is: a world that is redefined has other numbers, too."""
    what = _runs().get(name) or _dealt().get(name) or _read()[name]
    return _hash(json.dumps(what, sort_keys=True).encode())[:8]


def subject(name: str) -> str:
    """The root that a world is about; "core" and "data" for what all share."""
    kind, _, entry = name.partition(":")[0].partition("/")[0].partition(" ")
    return f"{KINDS.get(kind, kind)} {entry}".strip()


def roots(name: str) -> tuple[str, set[str]]:
    """What a world's numbers follow from: the root that all such worlds share, and the others,
    with the settings of a run.
    """
    if name not in _runs():
        return "data", {subject(name)}
    world = _runs()[name]
    added = {
        adapter.root(kind, one["name"])
        for key, kind in adapter.ADDED.items()
        for one in world.get(key, ())
    }
    added |= {f"{kind} {world[kind]['name']}" for kind in ("method", "model")}
    added |= {f"task {world.get('task', 'classification')}"}
    return "core", added | set(adapter.settings(world))


def _of_run(world: worlds.World) -> Fingerprint:
    table = worlds.table(world)
    given = worlds.arrays(world["data"], table)
    if "images" in world:
        clients = int(table["client"].max()) + 1
        draw = np.random.default_rng(3)
        images = draw.normal(size=(clients, worlds.CLASSES * world["images"], 1, 4, 4))
        world = {**world, "images": images}
    rows, weights, traces = adapter.trained(world, given, table)
    keys = [name for name in rows.columns if name not in ("value", "round")]
    numbers: list[float] = []
    for _, part in rows.groupby("round", sort=True):
        training = (part["split"] == "train").to_numpy(bool)
        numbers += part.loc[training].sort_values("client")["value"].tolist()
        scored = part.loc[~training]
        labels = _rows_as_texts(scored[keys])
        numbers += _projected(dict(zip(labels, scored["value"].to_numpy()[:, None], strict=True)))
    for stage in sorted(weights):
        numbers += _projected(dict(_leaves(weights[stage])))
    if traces:
        numbers += _projected(dict(_leaves(traces)))
    what = sorted(_rows_as_texts(rows[["round", *keys]]))
    return {"text": f"{len(rows)} rows {_hash(''.join(what).encode())}", "numbers": numbers}


def _rows_as_texts(table: pd.DataFrame) -> list[str]:
    """Each row's cells, joined; `DataFrame.agg` takes as long as a small training."""
    columns = (table[name].astype(str) for name in table)
    return ["|".join(row) for row in zip(*columns, strict=True)]


def _leaves(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for key, leaf in tree.items():
        if isinstance(leaf, Mapping):
            yield from _leaves(leaf, f"{above}{key}/")
        else:
            yield f"{above}{key}", leaf.detach().double().cpu().numpy()


def _projected(leaves: Mapping[str, np.ndarray]) -> list[float]:
    """A norm, and two projections on directions that the names of leaves decide."""
    square, along = 0.0, np.zeros(2)
    for name, leaf in leaves.items():
        flat = np.asarray(leaf, np.float64).reshape(-1)
        # By the last name alone: what trees above are called is free.
        draw = np.random.default_rng(zlib.crc32(name.rpartition("/")[2].encode()))
        square += float(flat @ flat)
        along += draw.standard_normal((2, flat.size)) @ flat
    return [float(np.sqrt(square)), *along.tolist()]


def _of_scheme(scheme: str, values: worlds.World) -> Fingerprint:
    given = worlds.samples()
    with tempfile.TemporaryDirectory() as folder:
        if scheme == "file":
            path = Path(folder) / "own.parquet"
            own = {"sample": np.arange(90, dtype=np.int64), "client": np.arange(90) % 3}
            split = np.array(["train", "train", "test"])[np.arange(90) // 3 % 3]
            pd.DataFrame({**own, "split": split}).to_parquet(path)
            values = {"path": str(path)}
        table, statistics, distances = adapter.dealt(scheme, values, given)
    counts = table.groupby(["client", "split"]).size().tolist()
    columns = sorted(table.columns)
    assigned = table.sort_values("sample")[columns].to_csv(index=False)
    notes = "; ".join(map(str, table.attrs.get("notes", [])))
    texts = [" ".join(map(str, counts)), _hash(assigned.encode()), ",".join(columns)]
    texts += [_hash(statistics.to_csv(index=False).encode()), notes]
    return {"text": " / ".join(texts), "numbers": distances.select_dtypes("float").sum().tolist()}


def _of_data(name: str, values: worlds.World) -> Fingerprint:
    root = Path(tempfile.mkdtemp())
    try:
        if name in ("arrays", "images", "leaf", "table"):
            values = {**values, **_own_files(name, values, root)}
        files = root / "files" if adapter.with_files(name) else None
        prepared = adapter.read(name, values, files, root)
        arrays = {
            key: np.asarray(array)
            for key, array in {**vars(prepared), **prepared.inputs}.items()
            if isinstance(array, np.ndarray)
        }
        texts = [
            f"{key} {array.dtype} {list(array.shape)} {_content(array)}"
            for key, array in sorted(arrays.items())
        ]
        texts.append(_hash(repr([prepared.classes, prepared.domains]).encode()))
        numbers = [float(np.asarray(a, np.float64).std()) for _, a in sorted(arrays.items())]
        for normalisation in (prepared.normalisation, *prepared.normalisations.values()):
            for _, value in sorted((normalisation or {}).items()):
                if value is None or isinstance(value, str):
                    continue
                numbers += np.atleast_1d(np.asarray(value, np.float64)).tolist()
        return {"text": " / ".join(texts), "numbers": numbers}
    finally:
        shutil.rmtree(root)


def _own_files(name: str, values: worlds.World, root: Path) -> dict[str, Any]:
    draw = np.random.default_rng(5)
    if name == "table":
        n = 40
        frame = pd.DataFrame(draw.normal(2, 3, (n, 3)), columns=["a", "b", "c"])
        frame["label"] = draw.choice(["x", "y", "z"], n)
        frame["who"] = draw.integers(0, 4, n)
        frame["part"] = draw.choice(["train", "train", "val", "test"], n)
        frame.to_csv(root / "own.csv", index=False)
        return {"path": str(root / "own.csv"), "label": "label"}
    if name == "arrays":
        texts = {
            "y": draw.choice(["cat", "dog"], 40),
            "domain": draw.choice(["day", "night"], 40),
            "split": draw.choice(["train", "train", "test"], 40),
        }
        x = draw.integers(0, 256, (40, 1, 4, 4), dtype=np.uint8)
        np.savez(root / "own.npz", x=x, client=draw.integers(0, 4, 40), **texts)
        return {"path": str(root / "own.npz")}
    if name == "leaf":
        numbers = {"x": draw.normal(2, 3, (20, 4)).tolist(), "y": [i % 3 for i in range(20)]}
        texts = {"x": ["to be or not to be"] * 20, "y": [*"abcde"] * 4}
        for path, data in (("numbers.json", numbers), ("texts.json", texts)):
            content = {"users": ["a"], "num_samples": [20], "user_data": {"a": data}}
            (root / path).write_text(json.dumps(content))
        return {"path": str(root / ("texts.json" if "text" in values else "numbers.json"))}
    from PIL import Image

    for label in ("cat", "dog"):
        (root / "photos" / label).mkdir(parents=True)
        for number in range(4):
            pixels = draw.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / "photos" / label / f"{number}.png")
    return {"path": str(root / "photos")}


def _content(array: np.ndarray) -> str:
    """Of floats their rounded values, as the last digits of a mean may differ."""
    rounded = np.round(array, 6) + 0.0 if array.dtype.kind == "f" else array
    return _hash(np.ascontiguousarray(rounded).tobytes())


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
