"""Stored runs that stand under names of code that was certified later.

A run that is trained with uncertified code is named by the hash of this code. When the code is
certified, the same run gets another name, with the version. Here such runs are found again:
`fl.plan.certification` says which hashes stand for which version. A run that a plan needs and the
store lacks is *adopted*: it appears under its present name, with the same files, and the run under
the earlier name stays.

Records are read once: ``<results>/plan/names.json`` has the runs that were looked at. They are read
again when ``numbers.json`` changes.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fl.base import identity
from fl.base.errors import FedloomError
from fl.base.units import quantity
from fl.data import partitioning, preparation
from fl.plan import certification, plan_files
from fl.plan.bundle import Run
from fl.plan.certification import Doubt
from fl.plan.config import Settings
from fl.plan.doubts import Doubts, all_roots
from fl.plan.run_spec import SPEC_ERRORS, RunSpec, model_code, with_defaults
from fl.store import run_check
from fl.store.run_record import is_name
from fl.store.store import Store

log = logging.getLogger(__name__)

NAMES_FILE = "names.json"


class Name(NamedTuple):
    """The present name of a stored run: the id of its point, and its own."""

    point: str
    run: str


@dataclass(frozen=True)
class _Index:
    """Content of `NAMES_FILE`.

    Attributes:
        certified: Hash of ``numbers.json``.
        store: The store.
        looked_at: The runs that were looked at.
        names: Present name by stored run, of those whose name differs.
    """

    certified: str
    store: str
    looked_at: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)


class Candidate(NamedTuple):
    """A stored run with the spec of a planned one.

    Attributes:
        run: The stored run.
        planned: The planned run.
        doubts: What may have changed its numbers.
    """

    run: str
    planned: str
    doubts: list[Doubt]

    @property
    def is_changed(self) -> bool:
        """Whether a version says that the numbers have changed."""
        return any(doubt.is_change for doubt in self.doubts)


def candidates(store: Store, runs: Iterable[str], sources: Collection[str] = ()) -> list[Candidate]:
    """Return the stored runs that have the specs of planned ones, whatever code made them.

    Of several stored runs, that with the fewest doubts stands for a planned one.

    Args:
        store: The store.
        runs: Ids of the planned runs.
        sources: Stored runs of which alone is asked; by default all.
    """
    translation, doubts = _Translation(store, {}, by_spec=True), Doubts(store)
    for run in store.runs():
        translation.name(run)
    missing = {run for run in runs if not store.has(run)}
    by_planned: dict[str, Candidate] = {}
    for run, name in sorted(translation.names.items()):
        if name.run in missing and (run in sources or not sources):
            candidate = Candidate(run, name.run, doubts.of_run(run))
            other = by_planned.setdefault(name.run, candidate)
            by_planned[name.run] = min(other, candidate, key=_order)
    return list(by_planned.values())


def _order(candidate: Candidate) -> tuple[bool, int]:
    return candidate.is_changed, len(candidate.doubts)


def adopt(runs: Iterable[str], read_member: Callable[[str], Run], settings: Settings) -> None:
    """Adopt those runs of a plan that the store has under a name of code that is now certified.

    A store or a folder of results that cannot be written stays as it is, with a warning.

    Args:
        runs: Ids of the planned runs.
        read_member: Function that returns a run of the plan by its id.
        settings: The folders of the store and of results.
    """
    store = Store(Path(settings.store))
    missing = [run for run in runs if not store.has(run)]
    if not missing or not store.root.is_dir():
        return
    count = 0
    try:
        stored_runs = _stored_runs(store, plan_files.plan_folder(settings.results) / NAMES_FILE)
        for run in missing:
            if run in stored_runs:
                count += adopt_run(store, stored_runs[run], read_member(run))
    except FedloomError as error:
        log.warning("runs of code that is now certified cannot be adopted: %s", error)
    if count:
        runs_text = quantity(count, "stored run")
        log.info("%s of code that was certified later found under new names", runs_text)


def adopt_run(store: Store, source: str, member: Run) -> bool:
    """Make a planned run of a stored one; False, with a warning, if it is damaged.

    Args:
        store: The store.
        source: Id of the stored run.
        member: The planned run.
    """
    try:
        execution = store.record(source)["execution"]
        stack = [member.run if run == source else run for run in execution.get("stack") or ()]
        changes = {
            "run": member.run,
            "spec": member.spec,
            "code": member.code,
            "defaults": member.defaults,
            "code_files": RunSpec(member.spec).code_files,
            "start": member.start,
            "execution": {**execution, "stack": stack or None},
            "trained_as": source,
        }
        with store.open(member.run, wait=False) as workspace:
            return workspace is not None and workspace.adopt(store.folder(source), changes)
    except FedloomError as error:
        log.warning("%s cannot be adopted as %s: %s", source, member.run, error)
        return False


def _stored_runs(store: Store, path: Path) -> dict[str, str]:
    """Return the stored run of each present name that differs; reads what is new in the store."""
    certified = identity.digest(identity.read_certified())
    index = _Index(certified, str(store.root))
    with contextlib.suppress(FedloomError):
        written = plan_files.read(_Index, path)
        if (written.certified, written.store) == (index.certified, index.store):
            index = written
    stored = {path.name for path in store.root.iterdir() if is_name(path.name)}
    names = {run: Name(*name) for run, name in index.names.items() if run in stored}
    if added := sorted(stored - {*index.looked_at}):
        translation = _Translation(store, names)
        for run in added:
            translation.name(run)
        present_names = {run: [*name] for run, name in names.items()}
        plan_files.write(path, _Index(certified, str(store.root), sorted(stored), present_names))
    return {name.run: run for run, name in sorted(names.items(), reverse=True)}


@dataclass
class _Translation:
    """Present names of stored runs.

    Attributes:
        store: The store.
        names: Present names by stored run, of those whose name differs.
        by_spec: Whether runs of any code get the name that the present code gives to their spec.
        visited: Runs whose record was read, so that damaged records cannot make a circle.
        data_ids: Results of `_data_ids`.
    """

    store: Store
    names: dict[str, Name]
    by_spec: bool = False
    visited: set[str] = field(default_factory=set)
    data_ids: dict[str, dict[str, str]] = field(default_factory=dict)

    def name(self, run: str) -> Name | None:
        """Return the present name of a stored run; None if it does not differ or is unknown."""
        if run in self.names or run in self.visited or not self.store.has(run):
            return self.names.get(run)
        self.visited.add(run)
        try:
            record = self.store.record(run)
            start = record.get("start")
            start_name = self.name(start) if isinstance(start, str) and is_name(start) else None
            if self.by_spec or start_name or _is_uncertified(record):
                # The name is computed from the record, so a record that is not of this run is none.
                run_check.check_id(record, run, str(self.store.folder(run)))
                name = self._present_name(record, start_name)
                if name.run != run:
                    self.names[run] = name
        except SPEC_ERRORS as error:
            log.debug("%s: %s", run, error)
        return self.names.get(run)

    def _present_name(self, record: Mapping[str, Any], start: Name | None) -> Name:
        spec = with_defaults(record["spec"])
        if start is not None and spec.get("start") is not None:
            spec["start"] = start.point
        elif start is not None:
            spec["train_on"] = start.run
        run_spec = RunSpec(spec)
        code = run_spec.code if self.by_spec else self._present_code(record["code"], run_spec)
        point = identity.point_id(spec, code, run_spec.default_keys)
        return Name(point, identity.run_id(point, spec["seed"]))

    def _present_code(self, code: Mapping[str, str], run_spec: RunSpec) -> dict[str, str]:
        """Return the code of a run with versions for the hashes that were certified."""
        present = dict(code)
        roots = all_roots(run_spec)
        for key, root in (*run_spec.roots.items(), ("core", identity.CORE)):
            equal_names = certification.equal_names(root, roots)
            if code[key] in equal_names:
                present[key] = equal_names[0]
        model = run_spec.spec["model"]
        for names, present_names in _renamings([run_spec.roots["model"]], roots):
            if code["model"] == model_code(model, names.__getitem__):
                present["model"] = model_code(model, present_names.__getitem__)
        key = identity.digest([code["dataset"], code["partition"], sorted(roots)])
        if key not in self.data_ids:
            self.data_ids[key] = _data_ids(code["dataset"], code["partition"], run_spec, roots)
        return present | self.data_ids[key]


def _is_uncertified(record: Mapping[str, Any]) -> bool:
    """Whether a run was trained with code that was not certified, which may be certified now.

    The code of data is not in the record; the files of it that were not certified are.
    """
    has_hash = not certification.certified_hashes().isdisjoint(record["code"].values())
    return has_hash or any(label.startswith("fl/") for label in record.get("code_files", ()))


def _data_ids(dataset: str, partition: str, run_spec: RunSpec, roots: set[str]) -> dict[str, str]:
    """Return the ids of data set and partition by versions, where the given ones hold hashes."""
    spec = run_spec.spec
    for names, present_names in _renamings(run_spec.data_roots, roots):
        code_of, present_code_of = names.__getitem__, present_names.__getitem__
        if (
            preparation.dataset_id(spec["dataset"], code_of) == dataset
            and partitioning.partition_id(spec["partition"], dataset, code_of) == partition
        ):
            present_dataset = preparation.dataset_id(spec["dataset"], present_code_of)
            return {
                "dataset": present_dataset,
                "partition": partitioning.partition_id(
                    spec["partition"], present_dataset, present_code_of
                ),
            }
    return {}


def _renamings(
    roots: Iterable[str], all_roots: set[str]
) -> Iterator[tuple[dict[str, str], dict[str, str]]]:
    """Yield each way to name some roots under which a run has the same numbers, and the present."""
    equal_names = {root: certification.equal_names(root, all_roots) for root in roots}
    present_names = {root: names[0] for root, names in equal_names.items()}
    for names in itertools.product(*equal_names.values()):
        yield dict(zip(equal_names, names, strict=True)), present_names
