"""Runs as a study plans them, and bundles of those that are trained together.

A `Run` is the same record from the expansion of a study to its report: in the plan of the study,
and in the bundle that a job reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fl.api.training import Training
from fl.base import arithmetic, fields, identity
from fl.base.errors import ConfigError, DataError, Location, unknown_name
from fl.base.files import parse_json
from fl.base.folders import Folders
from fl.base.specs import Spec
from fl.base.units import quantity
from fl.plan.config import Execution
from fl.store.run_record import OPTIONAL_FILES
from fl.store.store import Store


@dataclass(frozen=True)
class Run:
    """A planned run.

    Its id follows from ``spec``, ``code`` and ``defaults``. From ``bundle`` on, the attributes are
    empty where it is planned by no study.

    Attributes:
        run: The run's id.
        spec: Every choice that decides its numbers, as JSON has it.
        code: Hashes of the code and the data with which it was planned
            (`fl.plan.run_spec.RunSpec.code`).
        defaults: Keys of the spec that the run's name leaves out
            (`fl.plan.run_spec.RunSpec.default_keys`).
        start: Id of the run whose stored model or images it trains on.
        keep: Optional files of `fl.store.run_record` that it must have: in a study those that the
            study needs, in a bundle those that any study needs.
        point_id: Id of its point, which it shares with the runs of other seeds.
        unstackable: Why its clients cannot be trained in one stack; empty if they can, or if that
            was not tried.
        state_bytes: Bytes of its state after a round, about; 0 if it was not tried, or if only the
            data can tell how many clients there are.
        is_linear: Whether its network is linear layers (`fl.api.network.Network.is_linear`); False
            if that was not tried.
        bundle: Id of the bundle that trains it.
        method: Label of its method entry.
        title: Name of the entry in print.
        point: Values of the keys that the entry's grid varies; those of its parent's grid as
            ``start.<key>`` or ``train_on.<key>``.
        dataset: Its data set as the study writes it, a column of the result table.
        partition: Its partition as the study writes it, a column of the result table.
        model: Its model as the study writes it, a column of the result table.
        setting: Id of its `fl.plan.study_plan.Setting`.
        draw: Seeds of data set and partition, ``partition seed 10``; empty if the setting has only
            one draw.
    """

    run: str
    spec: Spec
    code: dict[str, str]
    defaults: list[str]
    start: str | None = None
    keep: list[str] = field(default_factory=list)
    point_id: str = ""
    unstackable: str = ""
    state_bytes: int = 0
    is_linear: bool = False
    bundle: str = ""
    method: str = ""
    title: str = ""
    point: dict[str, Any] = field(default_factory=dict)
    dataset: str = ""
    partition: str = ""
    model: str = ""
    setting: str = ""
    draw: str = ""

    @property
    def seed(self) -> int:
        """The seed of training."""
        return int(self.spec["seed"])

    @property
    def entry_title(self) -> str:
        """Name of its entry in print, and of its point: ``FedProx(mu=0.5)``."""
        point = ", ".join(f"{key}={value}" for key, value in self.point.items())
        return f"{self.title}{f'({point})' if point else ''}"

    @property
    def dataset_id(self) -> str:
        """Id of its data set."""
        return self.code["dataset"]

    @property
    def partition_id(self) -> str:
        """Id of its partition's folder."""
        return self.code["partition"]


@dataclass(frozen=True)
class Bundle:
    """Runs that differ only in their seed, and what is needed to train them.

    Of several draws, `join` makes one bundle, which has data set and partition of the first.

    Attributes:
        bundle: The bundle's id.
        title: Name in messages.
        runs: The runs.
        dataset: Id of the data set.
        partition: Id of the partition.
        after: Bundles that must be trained before this one.
        results: Folder of plan, partitions and tables.
        data: Folder of raw and prepared data.
        sources: Folder or address of raw files by data set.
        lock: The lock file of raw files.
        plugins: Folders of the user's own code.
        execution: How the runs are computed.
    """

    bundle: str
    title: str
    runs: list[Run]
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
    def from_json(cls, content: Mapping[str, Any], location: Location) -> Bundle:
        """Return the bundle in the content of ``bundles/<id>.json``.

        Each run's id is computed again, so that no run is trained under the name of another.

        Raises:
            ConfigError: At ``location``, for content that is no bundle.
        """
        declared = fields.fields(cls)
        values = {key: value for key, value in content.items() if key in declared}
        bundle = cls(**fields.parse(cls, values, location))
        if not bundle.runs:
            raise ConfigError(location / "runs", "is empty", advice="plan again")
        for i, run in enumerate(bundle.runs):
            _check(run, location / "runs" / i)
        return bundle

    @property
    def unstackable(self) -> str:
        """Why clients cannot be trained in one stack; empty if they can."""
        return self.runs[0].unstackable

    @property
    def arithmetic(self) -> str:
        """The arithmetic of its runs (`fl.base.arithmetic`)."""
        return arithmetic.of_spec(self.runs[0].spec)

    @property
    def stack_key(self) -> str:
        """Key of bundles that `join` can join, as they differ only in their draw; else the id.

        A stack of any size gives portable runs of linear layers the same bits, so that a run may be
        trained with those that the store lacks as well.
        """
        run, execution = self.runs[0], self.execution
        is_stacked = execution.backend in ("auto", "stacked") and not run.unstackable
        has_same_bits = run.is_linear and self.arithmetic == arithmetic.PORTABLE
        if not (is_stacked and has_same_bits) or execution.processes > 1:
            return self.bundle
        code = {
            key: value for key, value in run.code.items() if key not in ("dataset", "partition")
        }
        spec: dict[str, Any] = {
            key: value for key, value in run.spec.items() if key not in ("seed", "start")
        }
        for key in ("dataset", "partition"):
            spec[key] = {name: value for name, value in spec[key].items() if name != "seed"}
        # The entry's label and point say what the run begins with.
        return identity.digest([spec, run.method, run.point, code, asdict(execution)])

    @property
    def folders(self) -> Folders:
        """The folders of data and partitions."""
        return Folders(Path(self.data), Path(self.results), self.sources, self.lock)


def read(path: Path) -> Bundle:
    """Return the bundle in a file that `fl.plan.plan` wrote.

    Raises:
        DataError: For a file that is no bundle.
    """
    location = Location("the file")
    try:
        content = fields.mapping(parse_json(path.read_bytes()), location)
        return Bundle.from_json(content, location)
    except (OSError, ValueError, ConfigError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = f"cannot be read as a bundle ({type(error).__name__}: {error})"
        raise DataError(
            f"{path}: {'does not exist' if is_missing else reason}",
            advice="a file of results/plan/bundles, which `fedloom plan --write` writes",
        ) from None


def _check(run: Run, location: Location) -> None:
    """Raise `ConfigError` if a run's id is not that of its spec and code."""
    try:
        point = identity.point_id(run.spec, run.code, run.defaults)
        expected = identity.run_id(point, run.spec["seed"])
        training = run.spec["training"]
    except (KeyError, TypeError) as error:
        raise ConfigError(location / "spec", f"is not the spec of a run ({error!r})") from None
    start = run.spec.get("start")
    has_its_start = start is None or run.start == identity.run_id(start, run.seed)
    if run.run != expected or not has_its_start:
        problem = f"is {run.run[:100]!r}, but its spec and code are those of {expected}"
        raise ConfigError(location / "run", problem, advice="plan again")
    for i, name in enumerate(run.keep):
        if name not in OPTIONAL_FILES:
            raise unknown_name(location / "keep" / i, "file", name, OPTIONAL_FILES)
    fields.parse(Training, training, location / "spec" / "training")


def join(bundles: Sequence[Bundle]) -> Bundle:
    """Return one bundle with the runs of bundles that have one `Bundle.stack_key`."""
    first, *others = bundles
    if not others:
        return first
    runs = [run for bundle in bundles for run in bundle.runs]
    title = f"{first.title} and {quantity(len(others), 'more draw')}"
    after = sorted({start for bundle in bundles for start in bundle.after})
    return replace(first, title=title, runs=runs, after=after)


def missing_runs(bundle: Bundle, store: Store) -> list[Run]:
    """Return the runs of a bundle that the store lacks, or has without an optional file."""
    return [run for run in bundle.runs if not store.has(run.run, run.keep)]


def training_order(bundles: Sequence[Bundle], store: Store) -> Iterator[Bundle]:
    """Yield the bundles of a job in the order in which to train them.

    Each is chosen when it is asked for. Bundles that another process trains come last, so that
    several who share a store share the work. A bundle comes after those that it waits for. Those
    that differ only in their draw are joined.
    """
    remaining = {bundle.bundle: bundle for bundle in bundles}
    draws: dict[str, list[Bundle]] = {}
    for bundle in bundles:
        draws.setdefault(bundle.stack_key, []).append(bundle)

    def is_ready(bundle: Bundle) -> bool:
        return bundle.bundle in remaining and not remaining.keys() & {*bundle.after}

    def is_idle(bundle: Bundle) -> bool:
        return not any(store.holder(run.run) for run in bundle.runs)

    while remaining:
        ready = list(filter(is_ready, remaining.values())) or list(remaining.values())
        chosen = next(filter(is_idle, ready), ready[0])
        others = (bundle for bundle in draws[chosen.stack_key] if bundle is not chosen)
        stack = [chosen, *(bundle for bundle in others if is_ready(bundle) and is_idle(bundle))]
        for bundle in stack:
            del remaining[bundle.bundle]
        yield join(stack)
