"""Writes a small ``results/`` folder in the store's format, for the tests of tables and report.

Run as a script, ``python tests/helpers/make_results.py FOLDER``, it writes four full studies to
look at.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fl.api.training import Training
from fl.base.dataclass_json import as_json, from_json
from fl.base.schema import METRIC_COLUMNS
from fl.plan import plan_files
from fl.plan.study_plan import StudyPlan
from fl.store.run_record import RunRecord
from fl.store.store import Store

Row = tuple[int, int, str, str, str, float, int]
"""A row of ``metrics.parquet``: round, client, split, stage, metric, value, n."""


def entry(run: str, method: str, **choices: Any) -> dict[str, Any]:
    """A planned run with plain choices where none are given."""
    plain = {
        "point": {},
        "dataset": "digits",
        "partition": "dirichlet(clients=2, alpha=0.3)",
        "partition_id": "part",
        "model": "mlp",
        "seed": 0,
        "bundle": "b0",
        "title": method,
    }
    return {"run": run, "method": method} | plain | choices


def plan(runs: Sequence[Mapping[str, Any]], **choices: Any) -> dict[str, Any]:
    """A study's plan."""
    plain = {
        "study": "small",
        "title": "A small study",
        "question": "",
        "metric": "accuracy",
        "baseline": None,
        "hash": "cafe0123",
        "published": [],
    }
    return with_settings(plain | choices | {"runs": list(runs)})


SEED = re.compile(r"(, )?\bseed=\d+(, )?")
"""The seed of a draw in the texts that these tests write."""


def with_settings(made: dict[str, Any]) -> dict[str, Any]:
    """The plan with settings and draws of its runs, found in their texts."""
    titles = made.get("titles") or {}
    kinds = ("dataset", "partition", "model")
    settings: dict[str, dict[str, Any]] = {}
    words: dict[str, list[str]] = {}
    scenarios: dict[str, set[tuple[str, ...]]] = {}
    for run in made["runs"]:
        texts = tuple(run[kind] for kind in kinds)
        plain = [SEED.sub("", text).replace("()", "") for text in texts]
        run["setting"] = key = " / ".join(plain)
        scenarios.setdefault(key, set()).add(texts)
        words[key] = [
            re.sub(r", \d+$", "", titles.get(kind, {}).get(text, base))
            for kind, text, base in zip(kinds, texts, plain, strict=True)
        ]
        settings[key] = {"id": key, "title": " · ".join(words[key])} | dict(
            zip(kinds, plain, strict=True)
        )
    alike = [len({tuple(w[i : i + 1]) for w in words.values()}) == 1 for i in range(3)]
    several = len(settings) > 1
    for key, setting in settings.items():
        own = [w for w, same in zip(words[key], alike, strict=True) if not (several and same)]
        setting["short_title"] = " · ".join(own)
    for run in made["runs"]:
        drawn = [f"{kind} {m[0].strip(', ')}" for kind in kinds if (m := SEED.search(run[kind]))]
        run["draw"] = ", ".join(drawn) if len(scenarios[run["setting"]]) > 1 else ""
    shared = [w for w, same in zip(next(iter(words.values()), []), alike, strict=False) if same]
    return {**made, "settings": [*settings.values()], "shared": " · ".join(shared) * several}


def planned(made: Mapping[str, Any]) -> StudyPlan:
    """The plan as code reads it; keys that a test does not set are empty."""
    keys: dict[str, Any] = {
        **{key: [] for key in ("metrics", "analyses", "seeds")},
        **{key: {} for key in ("contrasts", "titles", "models", "heads", "entries", "names")},
        "departures": None,
        "test": "own",
        "scored": "last",
    }
    study = with_settings(dict(made))
    ids = ("dataset_id", "partition_id")
    for run in study["runs"]:
        run["spec"] = {"seed": run["seed"], **run.get("spec", {})}
        run["code"] = {key.removesuffix("_id"): run.get(key, "") for key in ids}
        run["defaults"] = []
    return from_json(StudyPlan, as_json(keys | study))


def write_plan(results: Path, made: Mapping[str, Any]) -> None:
    plan_files.write(results / "plan" / "studies" / f"{made['study']}.json", planned(made))


def write_run(
    store: Path, run: str, rows: Iterable[Row], state: str = "complete", **record: Any
) -> None:
    plain = {
        "run": run,
        "state": state,
        "spec": {},
        "code": {},
        "versions": {"python": "3.11.9", "torch": "2.11.0", "fedloom": "0.1.0"},
        "execution": {"backend": "stacked", "device": "cpu", "threads": 1},
        "rounds": 2,
        "seconds": 1.5,
        "note": "",
    }
    frame = pd.DataFrame(list(rows), columns=list(METRIC_COLUMNS))
    if len(frame):
        plain["rounds"] = int(frame["round"].max())
    with Store(store).open(run) as workspace:
        assert workspace is not None, f"{run} is there already"
        workspace.finish(plain | record, frame)


def record(rounds: int, state: str = "complete", **values: Any) -> RunRecord:
    """A record with plain values where none are given."""
    plain = {"run": "r", "seconds": 1.0, "execution": {"backend": "loop"}}
    return RunRecord.from_json(plain | values | {"rounds": rounds, "state": state})


def clients(
    values: Sequence[float],
    round: int = 2,
    split: str = "test",
    stage: str = "global",
    metric: str = "accuracy",
) -> list[Row]:
    """One row per client."""
    return [(round, c, split, stage, metric, value, 10) for c, value in enumerate(values)]


def write_partition(
    results: Path,
    name: str,
    counts: Mapping[str, Sequence[Sequence[int]]],
    classes: Sequence[str],
    notes: Sequence[str] = (),
    scheme: str = "dirichlet",
    params: Mapping[str, Any] | None = None,
    dataset: str = "digits",
    unseen: Sequence[int] = (),
    domains: Sequence[str] = (),
) -> None:
    """A partition from its counts: split -> clients x classes."""
    folder = results / "partitions" / name
    folder.mkdir(parents=True)
    population = sum(np.sum(c, axis=0) for c in counts.values())
    population = population / population.sum()
    statistics, samples = [], []
    for split, table in counts.items():
        for client, row in enumerate(table):
            n = sum(row)
            share = np.asarray(row) / max(n, 1)
            statistics.append(
                {
                    "client": client,
                    "split": split,
                    "n": n,
                    "label_entropy": float(-sum(p * np.log(p) for p in share if p > 0)),
                    "majority_share": float(share.max()),
                    "emd": float(np.abs(share - population).sum()),
                    **{f"class_{c}": int(k) for c, k in enumerate(row)},
                }
            )
            samples += [(client, split)] * n
    pd.DataFrame(statistics).to_parquet(folder / "statistics.parquet", index=False)
    frame = pd.DataFrame(samples, columns=["client", "split"])
    frame.insert(0, "sample", np.arange(len(frame)))
    frame.to_parquet(folder / "partition.parquet", index=False)
    about = {
        "dataset": dataset,
        "scheme": scheme,
        "params": dict(params or {}),
        "notes": list(notes),
        "unseen": list(unseen),
        "classes": list(classes),
        "domains": list(domains),
    }
    (folder / "partition.json").write_text(json.dumps(about))


METHODS = {
    # label: title, grid, final shared accuracy, gain of personalisation, spread over clients
    "local": ("Local", [{}], 0.80, None, 0.10),
    "fedavg": ("FedAvg", [{}], 0.88, None, 0.06),
    "fedprox": ("FedProx", [{"mu": 0.001}, {"mu": 0.01}, {"mu": 0.1}], 0.89, None, 0.05),
    "fedavg-ft": ("FedAvg + fine-tuning", [{}], 0.88, 0.05, 0.04),
    "scaffold": ("SCAFFOLD", [{}], 0.90, None, 0.05),
}
ALPHAS = (0.1, 0.5)
N_CLIENTS, N_ROUNDS = 8, 30


def _curves(
    rng: np.random.Generator, label: str, alpha: float, shift: float, n_clients: int, n_rounds: int
) -> list[Row]:
    _, _, level, gain, spread = METHODS[label]
    level += shift - 0.03 * (alpha < 0.3)
    offsets = rng.normal(0, spread, n_clients)
    rows: list[Row] = []
    rounds = range(2) if gain else range(n_rounds + 1)
    for r in rounds:
        grown = level if gain else level - (level - 0.1) * np.exp(-r / 5)
        grown += (gain or 0) * r * bool(gain)
        stage = "personal" if (gain and r) or label == "local" else "global"
        for c in range(n_clients):
            for split in ("val", "test"):
                value = float(np.clip(grown + offsets[c] + rng.normal(0, 0.01), 0, 1))
                n = 36 if split == "test" else 20
                rows.append((r, c, split, stage, "accuracy", round(value * n) / n, n))
                balanced = float(np.clip(value - 0.04, 0, 1))
                rows.append((r, c, split, stage, "balanced_accuracy", balanced, n))
                rows.append((r, c, split, stage, "loss", 2.4 * (1 - value) + 0.05, n))
            rows.append((r, c, "train", stage, "loss", float(2.3 * (1 - grown)), 160))
    return rows


def write_study(
    results: Path,
    study: str = "quickstart",
    alphas: Sequence[float] = ALPHAS,
    *,
    datasets: Sequence[str] = ("digits",),
    n_clients: int = N_CLIENTS,
    n_rounds: int = N_ROUNDS,
    **choices: Any,
) -> dict[str, Any]:
    """A study with a grid, a diverged run, a missing run and published numbers; its plan."""
    rng = np.random.default_rng(0)
    runs = []
    for dataset, alpha in itertools.product(datasets, alphas):
        text = f"dirichlet(clients={n_clients}, alpha={alpha})"
        name = f"{dataset}-{alpha}"
        shares = rng.dirichlet(np.full(n_clients, alpha * 2), 10).T
        splits = {"train": 108, "val": 36, "test": 36}
        counts = {s: (1 + shares * k).astype(int).tolist() for s, k in splits.items()}
        notes = ["The third draw was kept: the first two left a client with fewer than 10 samples."]
        params = {"clients": n_clients, "alpha": alpha}
        write_partition(results, name, counts, list("0123456789"), notes, params=params)
        shared: dict[int, str] = {}
        for label, (title, grid, *_) in METHODS.items():
            for i, point in enumerate(grid):
                for seed in range(3):
                    run = f"{rng.integers(2**48):012x}"
                    if label == "fedavg":
                        shared[seed] = run
                    own = {"point": point, "seed": seed, "title": title, "dataset": dataset}
                    own |= {"start": shared[seed]} if label == "fedavg-ft" else {}
                    runs.append(entry(run, label, **own, partition=text, partition_id=name))
                    if (label, seed, alpha) == ("scaffold", 2, alphas[0]):
                        continue
                    bad = (label, i, seed) == ("fedprox", 2, 1)
                    shift = -0.01 * abs(i - 1) * (len(grid) > 1)
                    rows = _curves(rng, label, alpha, shift, n_clients, n_rounds)
                    seconds = float(rng.uniform(4, 9))
                    state = "diverged" if bad else "complete"
                    rows = [r for r in rows if r[0] < 4] if bad else rows
                    rounds = max(r[0] for r in rows)
                    start = own.get("start")
                    record = {"seconds": seconds, "rounds": rounds, "start": start}
                    write_run(results / "runs", run, rows, state, **record)
    made = plan(
        runs,
        study=study,
        title="Who gains from a shared model when labels are skewed?",
        question="Eight clients hold handwritten digits in unequal proportions. Does a shared "
        "model serve each of them better than training alone, and what does fine-tuning add?",
        baseline="fedavg-ft",
        hash="7d1f0a93c2be",
        published=[
            {
                "source": "Li et al. 2020",
                "table": "2",
                "row": "FedProx",
                "column": f"alpha={alphas[0]}",
                "value": 86.4,
                "sd": 0.7,
                "note": "their split of the data differs",
                "method": "fedprox",
                "setting": f"dirichlet(clients={n_clients}, alpha={alphas[0]})",
            }
        ],
    )
    made |= told(datasets) | choices
    write_plan(results, made)
    return made


def told(datasets: Sequence[str]) -> dict[str, Any]:
    """What the plan of `write_study` tells of its entries and models, as `fl.plan.study_plan`
    writes it.
    """
    entries = {}
    for label, (_, grid, _, gain, _) in METHODS.items():
        training = {f.name: [f.default] for f in fields(Training)}
        training |= {"rounds": [5 if gain else N_ROUNDS], "local_epochs": [1], "lr": [0.05]}
        entries[label] = {
            "method": label,
            "start": "fedavg" if gain else None,
            "training": training,
            "values": {key: [point[key] for point in grid] for key in grid[0]},
        }
    sizes = {"mlp": {name: 12_000 + 64 * i for i, name in enumerate(datasets)}}
    return {"entries": entries, "models": sizes, "seeds": [0, 1, 2]}


def write_six(results: Path) -> dict[str, Any]:
    """Three data sets on two partitions each, in long words."""
    datasets = ("synthetic(alpha=0.5, beta=0.5, clients=8)", "digits", "digits-domains")
    return write_study(results, "six", datasets=datasets, n_rounds=2)


if __name__ == "__main__":
    write_study(Path(sys.argv[1]) / "two" / "results")
    write_study(Path(sys.argv[1]) / "one" / "results", "single", ALPHAS[:1])
    write_six(Path(sys.argv[1]) / "six" / "results")
    crowd = {"n_clients": 1000, "n_rounds": 3}
    write_study(Path(sys.argv[1]) / "crowd" / "results", "crowd", ALPHAS[:1], **crowd)
