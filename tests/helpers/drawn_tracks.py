"""Tracks whose kept results are drawn, not trained: files as they are kept, of known truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

BUDGETS = (1, 4, 16)
DRAWS = range(8)


class Entry(NamedTuple):
    """An entry: title, gain on its family's baseline, operations as a multiple of FedAvg's."""

    title: str
    gain: float
    operations: float = 1.0
    sent: float = 1.0


SHARED = {
    "fedavg": Entry("FedAvg", 0.0),
    "fedprox": Entry("FedProx", 0.0005, 1.01),
    "scaffold": Entry("SCAFFOLD", 0.006, 1.02, 2.0),
    "fedavgm": Entry("FedAvgM", 0.025),
    "fedadam": Entry("FedAdam", 0.018),
    "fedexp": Entry("FedExP", 0.034),
    "feddyn": Entry("FedDyn", 0.03, 1.02),
    "fedsam": Entry("FedSAM", 0.004, 2.0),
    "moon": Entry("MOON", -0.001, 1.7),
    "fedfm": Entry("FedFM", -0.012, 1.1, 1.2),
    "pooled": Entry("Pooled", 0.045, 1.0, 5.0),
}
PERSONAL = {
    "fedavg-ft": Entry("FedAvg-FT", 0.0),
    "fedavg": Entry("FedAvg", -0.05),
    "local": Entry("Local", -0.08, 1.0, 0.0),
    "fedprox-ft": Entry("FedProx-FT", 0.0005, 1.01),
    "scaffold-ft": Entry("SCAFFOLD-FT", -0.004, 1.02, 2.0),
    "fedexp-ft": Entry("FedExP-FT", 0.018),
    "ditto": Entry("Ditto", 0.006, 2.0),
    "fedrep": Entry("FedRep", -0.02, 0.9, 0.8),
    "fedper": Entry("FedPer", 0.028, 0.98, 0.8),
    "apfl": Entry("APFL", -0.015, 2.0),
    "fedala": Entry("FedALA", -0.008, 1.3),
    "pfedgraph": Entry("pFedGraph", -0.018, 1.2),
    "fedsac": Entry("FedSaC", -0.022, 1.4, 1.2),
    "knn-per": Entry("kNN-Per", 0.012, 1.1),
}
NEWCOMERS = {
    "fedavg-ft": Entry("FedAvg-FT", 0.0),
    "fedavg": Entry("FedAvg", -0.04),
    "local": Entry("Local", -0.1, 1.0, 0.0),
    "fedprox-ft": Entry("FedProx-FT", 0.0, 1.01),
    "scaffold-ft": Entry("SCAFFOLD-FT", 0.003, 1.02, 2.0),
    "fedexp-ft": Entry("FedExP-FT", 0.02),
    "ditto-ft": Entry("Ditto-FT", -0.004, 1.5),
}
FAMILIES = {
    "personal": ("fedavg-ft", "participants", PERSONAL),
    "shared": ("fedavg", "participants", SHARED),
    "newcomers": ("fedavg-ft", "newcomers", NEWCOMERS),
}
NO_OPS: dict[str, dict[str, Any]] = {
    "fedprox": {"mu": 0, "is": "fedavg"},
    "fedavgm": {"beta": 0, "is": "fedavg"},
    "moon": {"mu": 0, "is": "fedavg"},
}
KEYS: dict[str, Any] = {
    "fedprox": {"mu": [0, 0.01, 0.1, 1]},
    "fedavgm": {"beta": [0, 0.5, 0.9]},
    "moon": {"mu": [0, 1.0, 5.0]},
}
STARTS = ("fedavg", "fedprox", "scaffold", "fedexp", "ditto")
NEAR = ("fedprox", "fedprox-ft", "moon", "ditto", "fedavg", "fedavg-ft")
AT_TWICE = 0.03
"""What twice the operations gain, of any method; four times twice that."""


class Pool(NamedTuple):
    """A pool: its title, number of scored clients, metric, size of effects and of noise."""

    title: str
    clients: int
    metric: str = "accuracy"
    factor: float = 1.0
    noise: float = 0.08
    blocks: int = 0


POOLS = {
    "films": Pool("Users of films", 447),
    "schools": Pool("Pupils by school", 600, "rmse", 4.0, 0.6, blocks=80),
    "roles": Pool("Roles of plays", 392, factor=0.4),
    "letters": Pool("Letters with skewed labels", 67, factor=1.4),
    "crashes": Pool("Crashes by state", 34, factor=0.3, noise=0.02),
    "typefaces": Pool("Typefaces", 20, factor=1.6, noise=0.06),
}


def write(config: Path, names: tuple[str, ...] = tuple(POOLS), most: int = 10**6) -> None:
    """Write the files of tracks and their kept results, of at most so many clients."""
    for number, name in enumerate(names):
        generator, pool = np.random.default_rng(number), POOLS[name]
        pool = pool._replace(clients=min(pool.clients, most))
        (config / "tracks").mkdir(parents=True, exist_ok=True)
        path = config / "tracks" / f"{name}.yaml"
        path.write_text(yaml.safe_dump(track_keys(pool), sort_keys=False))
        folder = config / "published" / "tracks" / name
        folder.mkdir(parents=True)
        for file, table in kept_tables(name, pool, generator).items():
            if file.endswith(".csv"):
                table.to_csv(folder / file, index=False)
            else:
                write_parquet(folder / file, table)


def write_parquet(path: Path, table: pd.DataFrame) -> None:
    about = {"1": {"commit": "0123456789abcdef", "date": "2026-11-28T16:00:00+00:00"}}
    written = pa.Table.from_pandas(table, preserve_index=False)
    pq.write_table(written.replace_schema_metadata({b"fedloom": json.dumps(about).encode()}), path)


def track_keys(pool: Pool) -> dict[str, Any]:
    """Return the keys of a track's file."""
    methods: dict[str, Any] = {m: KEYS.get(m) for m in {**SHARED, **PERSONAL, **NEWCOMERS}}
    for start in STARTS:
        methods[f"{start}-ft"] = {"method": "finetune", "start": start, "rounds": [1, 4]}
    methods["fedadam"] = {"method": "fedopt", "title": "FedAdam"}
    methods["pooled"] = {"method": "fedavg", "title": "Pooled"}
    return {
        "title": pool.title,
        "question": f"Which method helps {pool.clients} clients?",
        "dataset": "diabetes" if pool.metric == "rmse" else "digits",
        "partition": {"homogeneous": {"clients": 2 * pool.clients}},
        "model": "mlp",
        "metric": pool.metric,
        "training": {"rounds": 20, "local_steps": 5, "batch_size": 16},
        "lr": [0.1, 0.2],
        "methods": methods,
        "no_ops": NO_OPS,
        "families": {
            family: {
                "baseline": baseline,
                "clients": clients,
                "entries": [m for m in entries if m != baseline],
            }
            for family, (baseline, clients, entries) in FAMILIES.items()
        },
        "margin": 0.01 if pool.metric == "accuracy" else 0.05,
        "budgets": [{"times": 1}, {"times": 4, "best": 10}, {"times": 16, "best": 3}],
    }


def kept_tables(name: str, pool: Pool, generator: np.random.Generator) -> dict[str, pd.DataFrame]:
    """Return the kept tables of a track by their files."""
    newcomer = np.array([generator.random(pool.clients) < 0.2 for _ in DRAWS])
    block = generator.integers(0, pool.blocks, pool.clients) if pool.blocks else None
    clients = pd.DataFrame(
        [
            {
                "draw": draw,
                "client": client,
                "origin": 3 * client // 2,
                "block": -1 if block is None else block[client],
                "clients": "newcomers" if newcomer[draw, client] else "participants",
                "n_train": 40,
                "n_val": 10,
                "n_test": 22,
            }
            for draw in DRAWS
            for client in range(pool.clients)
        ]
    )
    level = generator.normal(0.6, 0.12, pool.clients)[:, None]
    values, runs = [], []
    for role in ("participants", "newcomers"):
        is_scored = (newcomer == (role == "newcomers")).T
        common = level + generator.normal(0, pool.noise / 2, (pool.clients, len(DRAWS)))
        floor = common - 0.25
        values += _rows(1, "majority", role, floor, is_scored, pool)
        gains: dict[str, Entry] = {}
        for baseline, clients_of, entries in FAMILIES.values():
            if clients_of == role:
                offset = 0.0 if baseline == "fedavg-ft" else PERSONAL[baseline].gain
                for entry, about in entries.items():
                    gains.setdefault(entry, about._replace(gain=offset + about.gain))
        special = {
            entry: generator.normal(0, 0.012)
            for entry in gains
            if entry not in ("fedavg", "fedavg-ft")
        }
        # What hardly differs from its baseline has nearly all its values.
        near = {e: 0.1 if e in NEAR else 1.0 for e in gains}
        special.update(dict.fromkeys(NEAR, 0.0))
        own = {e: near[e] * generator.normal(0, pool.noise / 2, (pool.clients, 1)) for e in gains}
        for entry, about in gains.items():
            for budget in BUDGETS:
                if budget > 1 and (
                    about.gain < -0.001 * budget
                    and entry
                    not in (
                        "fedavg",
                        "local",
                    )
                ):
                    continue
                luck = generator.normal(0, 0.002, (1, len(DRAWS)))
                noise = near[entry] * generator.normal(0, pool.noise, (pool.clients, len(DRAWS)))
                # What a longer run gains is the more, the less a method has gained before.
                longer = AT_TWICE * np.log2(budget) * (1 if about.gain < 0.01 else 0.55)
                gain = about.gain + special.get(entry, 0.0) + longer
                table = common + pool.factor * (gain + luck) + own[entry] + noise
                is_noop = entry in ("fedprox", "moon") and name in ("films", "crashes", "roles")
                if is_noop:
                    table = common + pool.factor * gains["fedavg"].gain
                lost = 2 if (entry, name) == ("feddyn", "letters") and budget == 1 else None
                kept = is_scored.copy()
                if lost is not None:
                    kept[:, lost] = False
                values += _rows(budget, entry, role, table, kept, pool)
                runs += _runs(budget, entry, role, about, is_noop, lost, pool)
    tried = pd.DataFrame(
        [
            {"budget": budget, "entry": entry, "hp.lr": lr, **point, "start": "", "draw": draw}
            | {"participants": 0.6 - 0.01 * i, "newcomers": 0.5, "state": "complete"}
            | {"chosen": "participants newcomers" if lr == 0.2 and not i else ""}
            for budget in BUDGETS
            for entry in {**SHARED, **PERSONAL, **NEWCOMERS}
            for i, point in enumerate(_points(entry))
            for lr in (0.1, 0.2)
            for draw in (100, 101)
        ]
    )
    everything = pd.DataFrame(
        values, columns=["budget", "entry", "clients", "draw", "client", "value"]
    )
    types = {"budget": "int32", "client": "int32", "value": "float32"}
    return {
        "values.parquet": everything.astype(types),
        "clients.parquet": clients,
        "runs.csv": pd.DataFrame(runs),
        "tried.csv": tried,
    }


def _points(entry: str) -> list[dict[str, Any]]:
    """Return the points of an entry beside its rates; the first is the no-op."""
    keys = KEYS.get(entry, {})
    return [{f"hp.{key}": value} for key, values in keys.items() for value in values] or [{}]


def _rows(
    budget: int, entry: str, role: str, table: np.ndarray, is_scored: np.ndarray, pool: Pool
) -> list[tuple[Any, ...]]:
    """Return rows of values; an RMSE falls where a share rises, a share is of 22 samples."""
    shown = 3 - table if pool.metric == "rmse" else np.clip(np.round(22 * table) / 22, 0, 1)
    return [
        (budget, entry, role, draw, client, shown[client, draw])
        for client, draw in zip(*np.nonzero(is_scored), strict=True)
    ]


def _runs(
    budget: int, entry: str, role: str, about: Entry, no_op: bool, lost: int | None, pool: Pool
) -> list[dict[str, Any]]:
    return [
        {
            "budget": budget,
            "entry": entry,
            "title": about.title,
            "clients": role,
            "draw": draw,
            "run": f"{entry}-{role}-{budget}-{draw}",
            "state": "diverged" if draw == lost else "complete",
            "point": "lr=0.2, mu=0" if no_op else "lr=0.2",
            "start": "",
            "no_op": "fedavg" if no_op else "",
            "at_edge": "",
            "seconds": 3.0 * about.operations * budget,
            "bytes": 2e4 * pool.clients * about.sent * budget,
            "operations": 1e8 * pool.clients * about.operations * budget,
            "numbers": "core 1",
            "arithmetic": "portable",
            "torch": "2.11.0",
            "numpy": "2.3",
            "mkl": "",
            "onednn": "",
            "processor": "some",
            "instructions": "avx2",
        }
        for draw in DRAWS
    ]
