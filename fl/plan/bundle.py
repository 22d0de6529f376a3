"""Bundles: the runs that are trained together, as a plan writes them down and a job reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.api.training import Training
from fl.base import fields, identity
from fl.base.errors import ConfigError, DataError, Location, unknown
from fl.base.files import parse_json
from fl.base.places import Folders
from fl.plan.config import Execution
from fl.store.layout import ON_DEMAND


@dataclass(frozen=True)
class Member:
    """A run of a bundle.

    Attributes:
        run: Its id.
        spec: Every choice that decides its numbers.
        code: The hashes of the code and the data that it was planned with.
        defaults: The keys of its spec that its name leaves out, see `fl.plan.specs.defaults`.
        start: The run whose stored model it starts from, if any.
        keep: The files that it is to have of those which not every run has (`fl.store.layout`).
    """

    run: str
    spec: dict[str, Any]
    code: dict[str, str]
    defaults: list[str]
    start: str | None
    keep: list[str]

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
        unstackable: Why its clients cannot be trained in one stack; "" if they can.
        results, data, sources, lock: Where things are kept, and where raw files come from.
        plugins: Folders of the user's own code.
    """

    bundle: str
    title: str
    runs: list[Member]
    dataset: str
    partition: str
    after: list[str]
    unstackable: str
    results: str
    data: str
    sources: dict[str, str]
    lock: str
    plugins: list[str]
    execution: Execution

    @classmethod
    def of(cls, given: Mapping[str, Any], location: Location) -> Bundle:
        """What ``bundles/<id>.json`` says, or a `ConfigError` at ``location``.

        Each run's id is computed again, so that no run is trained under the name of another.
        """
        its = {key: given[key] for key in fields.fields(cls) if key in given}
        bundle = cls(**fields.parse(cls, its, location))
        if not bundle.runs:
            raise ConfigError(location / "runs", "is empty", "at least one run")
        for i, member in enumerate(bundle.runs):
            _check(member, location / "runs" / i)
        return bundle

    @property
    def folders(self) -> Folders:
        """Where data and partitions are kept."""
        return Folders(Path(self.data), Path(self.results), self.sources, self.lock)


def read(path: Path) -> Bundle:
    """A bundle's spec file, as `fl.plan.plan` writes it, wherever it lies, or `DataError`."""
    try:
        return Bundle.of(
            fields.mapping(parse_json(path.read_bytes()), Location("it")), Location("it")
        )
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(
            f"{path}: cannot be read as a bundle ({type(error).__name__}: {error}). "
            "Allowed: a file that `python -m fl plan --write` put into results/plan/bundles"
        ) from None


def _check(member: Member, location: Location) -> None:
    """Refuse (`ConfigError`) a run whose id is not that of its spec and code."""
    try:
        point = identity.point(member.spec, member.code, member.defaults)
        run = identity.run(point, member.spec["seed"])
        training = member.spec["training"]
    except (KeyError, TypeError) as error:
        raise ConfigError(location / "spec", f"is no run's ({error!r})") from None
    start = member.spec.get("start")
    started = start is None or member.start == identity.run(start, member.seed)
    if member.run != run or not started:
        problem = f"is {member.run[:100]!r}, but its spec and code are those of {run}"
        raise ConfigError(location / "run", problem, "a bundle as it was planned; plan again")
    for i, name in enumerate(member.keep):
        if name not in ON_DEMAND:
            raise unknown(location / "keep" / i, "file", name, ON_DEMAND)
    fields.parse(Training, training, location / "spec" / "training")
