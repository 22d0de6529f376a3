"""Bundles: the runs that are trained together, as a plan writes them down and a job reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.api.training import Training
from fl.base import fields
from fl.base.errors import ConfigError, DataError, Where
from fl.base.files import parse_json
from fl.base.places import Folders
from fl.plan.config import Execution
from fl.store.run_check import check_spec, shaped


@dataclass(frozen=True)
class Member:
    """A run of a bundle.

    Attributes:
        run: Its id.
        spec: Every choice that decides its numbers.
        code: The hashes of the code and the data that it was planned with.
        start: The run whose stored model it starts from, if any.
        keep_weights: Whether its final weights are stored.
    """

    run: str
    spec: dict[str, Any]
    code: dict[str, str]
    start: str | None
    keep_weights: bool

    @property
    def seed(self) -> int:
        """The only thing in which the runs of a bundle differ."""
        return int(self.spec["seed"])


@dataclass(frozen=True)
class Bundle:
    """Runs that differ only in their seed, and what is needed to train them.

    Attributes:
        bundle: Its id.
        title: Its name in messages.
        dataset, partition: The ids of what the runs read.
        after: The bundles that have to be trained before it.
        results, data, sources, lock: Where things are kept, and where raw files come from.
        plugins: Folders of the user's own code.
    """

    bundle: str
    title: str
    runs: list[Member]
    dataset: str
    partition: str
    after: list[str]
    results: str
    data: str
    sources: dict[str, str]
    lock: str
    plugins: list[str]
    execution: Execution

    @classmethod
    def of(cls, given: Any, where: Where) -> Bundle:
        """What ``bundles/<id>.json`` says, or a `ConfigError` at ``where``."""
        written = fields.mapping(given, where)
        found = shaped(cls, {**written, "runs": []}, where)
        members = fields.value(list[dict[str, Any]], written.get("runs"), where / "runs")
        if not members:
            raise ConfigError(where / "runs", "is empty", "at least one run")
        runs = [_member(one, where / "runs" / i) for i, one in enumerate(members)]
        return cls(**{**found, "runs": runs})

    @property
    def folders(self) -> Folders:
        """Where data and partitions are kept."""
        return Folders(Path(self.data), Path(self.results), self.sources, self.lock)


def read(path: Path) -> Bundle:
    """A bundle's spec file, as `fl.plan.plan` writes it, wherever it lies."""
    try:
        return Bundle.of(parse_json(path.read_bytes()), Where("it"))
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(
            f"{path}: cannot be read as a bundle ({type(error).__name__}: {error}); "
            "allowed: a file that `python -m fl plan --write` put into results/plan/bundles"
        ) from None


def _member(given: Any, where: Where) -> Member:
    found = Member(**shaped(Member, given, where))
    check_name(found.run, where / "run")
    check_spec(found.spec, where / "spec")
    fields.parse(Training, found.spec["training"], where / "spec" / "training")
    return found


def check_name(run: str, where: Where) -> None:
    """Refuse (`ConfigError`) what cannot be a run's name, which is also the name of a folder."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", run):
        raise ConfigError(where, f"is {run[:100]!r}", "a run's name: letters, digits, - and _")
