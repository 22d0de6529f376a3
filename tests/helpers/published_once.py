"""A published study of each paper for one round, from its files to its table: fixtures-demo.

Of the shipped study stay data set, model, augmentation, partition, methods' keys, what is scored,
analyses and published cells. It runs for one round of a tenth of its participants, on one seed and
few generated files. What else is less than published, because it takes hours, stands beside it.

``config/published/ran-once.txt`` names the studies, for ``fedloom studies``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from fl.plan import study_files
from fl.pytorch import vision

CONFIG = Path(__file__).resolve().parents[2] / "config"
LIST = CONFIG / "published" / "ran-once.txt"


@dataclass(frozen=True)
class Once:
    """The part of a study that is run.

    Attributes:
        methods: Its entries, and those from which they start.
        files: By data set, keywords of its generator's ``write``.
        reading: By data set, keys that fewer files need.
        less: By entry, keys of training and method that are made smaller.
    """

    methods: tuple[str, ...]
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reading: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    less: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


CIFAR = {"files": {"cifar10": {"size": 200}}, "reading": {"cifar10": {"complete": False}}}
FEW = {"local_epochs": 1}

STUDIES = {
    "ditto-mmd-cifar10-0.5": Once(("fedavg", "ditto+mk-mmd-20"), **CIFAR),
    # Matching of features from the first round on, in place of the 21st.
    "fedfm-cifar10": Once(("fedavg", "fedfm"), **CIFAR, less={"fedfm": {"first": 1}}),
    "fedl2p-office-caltech10": Once(
        ("untrained", "ft-c", "nets", "fedl2p"),
        files={"office-caltech10": {"share": 12}},
        reading={"office-caltech10": {"complete": False, "side": 128}},  # 256 pixels.
        # 15 epochs and three steps of the nets in their round.
        less={"ft-c": FEW, "nets": {**FEW, "iterations": 1}, "fedl2p": FEW},
    ),
    # 10,000 steps of distillation before the first round, 500 on the server in it.
    "fedlgd-table3": Once(
        ("warm-up", "fedlgd"),
        files={"retina": {"share": 2}},
        reading={"retina": {"complete": False}},
        less={"warm-up": {"steps": 1, "participation": 1.0}, "fedlgd": {"server_steps": 5}},
    ),
    "fedsac-cifar10": Once(("pfedgraph", "fedsac"), **CIFAR),
}


def listed() -> list[str]:
    """The studies of ``LIST``."""
    lines = LIST.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def study(name: str) -> dict[str, Any]:
    """The keys of a shipped study, made small."""
    wanted = STUDIES[name]
    shipped = yaml.safe_load(study_files.file(CONFIG, name).read_text())
    training = shipped["training"]
    # Methods have defaults of their own, so that keys of the study do not reach all.
    small = {
        "rounds": 1,
        "evaluate_every": 1,
        "participation": training.get("participation", 1.0) / 10,
    }
    methods = {
        entry: {**(shipped["methods"][entry] or {}), **small, **wanted.less.get(entry, {})}
        for entry in wanted.methods
    }
    kept = {
        **shipped,
        "datasets": [_read(dataset, wanted.reading) for dataset in shipped["datasets"]],
        "seeds": shipped["seeds"][:1],
        "training": {**training, **small},
        "methods": methods,
        "baseline": wanted.methods[0],
        "published": [_of(methods, cells) for cells in shipped["published"]],
        "execution": {"run_minutes": 0.05},
    }
    kept["published"] = [cells for cells in kept["published"] if cells["rows"]]
    if "best" in shipped:
        kept |= {"grid": "published", "best": _of(methods, shipped["best"])}
    return kept


def files(names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The data sets of studies, each with keywords of its generator's ``write``."""
    return {
        dataset: STUDIES[name].files.get(dataset, {})
        for name in names
        for dataset in map(_name, study(name)["datasets"])
    }


def weights(home: Path) -> None:
    """A fresh ResNet-18 where torchvision keeps its trained one below ``TORCH_HOME``."""
    torchvision = vision.torchvision
    name = Path(torchvision.models.ResNet18_Weights.DEFAULT.url).name
    path = home / "hub" / "checkpoints" / name
    path.parent.mkdir(parents=True)
    torch.save(torchvision.models.resnet18().state_dict(), path)


def _name(dataset: Any) -> str:
    return dataset if isinstance(dataset, str) else next(iter(dataset))


def _read(dataset: Any, reading: Mapping[str, Mapping[str, Any]]) -> Any:
    """A data set with keys more."""
    name = _name(dataset)
    keys = {} if isinstance(dataset, str) else dataset[name]
    return {name: {**keys, **reading[name]}} if name in reading else dataset


def _of(methods: Mapping[str, Any], rows: Mapping[str, Any]) -> dict[str, Any]:
    """Published rows of these entries alone."""
    return {**rows, "rows": {key: row for key, row in rows["rows"].items() if key in methods}}
