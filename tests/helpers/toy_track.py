"""A track of twelve clients that is trained in seconds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fl.plan import track
from fl.plan.track import Track
from tools import comparison

TRACK: dict[str, Any] = {
    "title": "A toy",
    "question": "Does it run?",
    "dataset": {"synthetic": {"clients": 12, "samples": 240, "alpha": 1.0}},
    "partition": {"natural": {"val": 0.2, "test": 0.3}},
    "model": {"mlp": {"hidden": [4]}},
    "clients": {"newcomers": 0.25, "newcomer_samples": 5},
    "draws": {"tuning": [100], "scored": [0, 1, 2]},
    "training": {"rounds": 4, "local_steps": 2, "batch_size": 8, "evaluate_every": 100},
    "lr": [0.05, 0.1],
    "methods": {
        "fedavg": None,
        "fedprox": {"mu": [0, 0.1]},
        "fedavg-ft": {"method": "finetune", "start": "fedavg", "rounds": [1, 2]},
    },
    "no_ops": {"fedprox": {"mu": 0, "is": "fedavg"}},
    "families": {
        "personal": {"baseline": "fedavg-ft", "entries": ["fedavg"]},
        "shared": {"baseline": "fedavg", "entries": ["fedprox"]},
        "newcomers": {"baseline": "fedavg-ft", "clients": "newcomers", "entries": ["fedavg"]},
    },
    "margin": 0.01,
    "budgets": [{"times": 1}, {"times": 4, "best": 1}],
}


def changed(**keys: Any) -> dict[str, Any]:
    """The keys of the file, with some changed; None removes one."""
    return {key: value for key, value in {**TRACK, **keys}.items() if value is not None}


def write(config: Path, keys: Mapping[str, Any] | None = None, name: str = "toy") -> Path:
    """The file of the track in a config folder."""
    path = config / track.FOLDER / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(keys or TRACK), sort_keys=False))
    return path


def parsed(**keys: Any) -> Track:
    """The track, with some keys changed."""
    return track.parse(changed(**keys), "toy", Path("toy.yaml"))


def train(root: Path) -> None:
    """Train the track in a working directory, for a process of its own."""
    os.chdir(root)
    assert comparison.main(["toy", "--trial", "kept"]) == 0
