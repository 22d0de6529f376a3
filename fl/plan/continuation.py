"""Stored runs of fewer rounds, from whose last state a planned run goes on.

Two runs that differ in their number of rounds alone have the same first rounds, unless something in
them depends on that number: then `obstacle` says what. With ``execution: {keep_state: true}`` a
run without an obstacle keeps the state after its last round. A run of more rounds goes on from it,
if all runs of the stack in which it was trained do, with the software that computed it. So it gets
the bytes of a run that trains all rounds at once.
"""

from __future__ import annotations

import ast
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from fl.base import identity
from fl.base.specs import Spec
from fl.base.units import first_of, quantity, size
from fl.plan.bundle import Bundle, Run, missing_runs
from fl.plan.run_spec import SPEC_ERRORS, RunSpec
from fl.store.run_record import STATE
from fl.store.store import Store

ROUNDS = "rounds"

BLOCK_PACKAGE = "fl.blocks"

EVALUATED_ROUNDS = identity.ROOT / "blocks" / "gradient_dissimilarity.py"
"""A file that reads the number of rounds only to know whether a round is evaluated. What it
computes in the last round is recorded, and trains nothing.
"""


def obstacle(spec: Spec) -> str:
    """Return what depends on the number of rounds in a run's rounds; empty if nothing does.

    Args:
        spec: The spec of the run.
    """
    training = spec["training"]
    if training.get("schedule") in ("cosine", "drops"):
        return f"schedule: {training['schedule']} depends on the number of rounds"
    if training.get("early_stopping") is not None:
        return "early_stopping looks at every round but the last"
    # Models and tasks do not see the settings of training.
    roots = [root for key, root in RunSpec(spec).roots.items() if key not in ("model", "task")]
    reader = file_that_reads_rounds(roots)
    return f"{reader} reads the number of rounds" if reader else ""


def file_that_reads_rounds(roots: Iterable[str]) -> str:
    """Return a file of some components that reads the number of rounds; empty if none does.

    A file that reads an attribute ``rounds`` counts. Fedloom's engine reads it for schedules, early
    stopping and the evaluation of the last round alone.

    Args:
        roots: The components, see `fl.base.identity.entry`.
    """
    waiting = [path for root in roots for path in identity.code_files(root)]
    visited = {EVALUATED_ROUNDS}
    while waiting:
        path = waiting.pop()
        if path not in visited:
            visited.add(path)
            reads_rounds, blocks = _look(path, path.stat().st_mtime_ns)
            if reads_rounds:
                return identity.file_label(path)
            waiting += blocks
    return ""


@cache
def _look(path: Path, changed: int) -> tuple[bool, tuple[Path, ...]]:
    """Return whether a file reads an attribute ``rounds``, and the blocks that it imports.

    Args:
        path: The file.
        changed: Time of its last change, as it is read again then.
    """
    nodes = list(ast.walk(ast.parse(path.read_bytes())))
    names = {name for node in nodes for name in _imports(node)}
    files = (
        identity.ROOT / "blocks" / f"{name.removeprefix(f'{BLOCK_PACKAGE}.').partition('.')[0]}.py"
        for name in sorted(names)
        if name.startswith(f"{BLOCK_PACKAGE}.")
    )
    return any(map(_reads_rounds, nodes)), tuple(file for file in files if file.is_file())


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _reads_rounds(node: ast.AST) -> bool:
    """Whether a node reads an attribute ``rounds``, or all attributes of an object."""
    if isinstance(node, ast.Attribute):
        return node.attr in (ROUNDS, "__dict__")
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    names = [value.value for value in node.args if isinstance(value, ast.Constant)]
    return name in ("vars", "asdict", "astuple") or (name == "getattr" and ROUNDS in names)


class Source(NamedTuple):
    """A stored run that differs from a planned one in nothing but its fewer rounds.

    Attributes:
        run: Its id.
        rounds: Number of its rounds.
        stack: The runs that were trained with it, itself included, in order.
        problem: Why the planned run begins with round 1; empty if it goes on.
    """

    run: str
    rounds: int
    stack: tuple[str, ...]
    problem: str = ""


class Sources:
    """The complete runs of a store, from which planned ones may go on."""

    def __init__(self, store: Store, with_state: bool = False) -> None:
        """Read the records of a store.

        Args:
            store: The store.
            with_state: Whether to read only runs that have kept their state, which takes no time
                where none has.
        """
        self._by_key: dict[str, list[Source]] = {}
        for run in store.runs():
            has_state = store.has(run, (STATE,))
            if with_state and not has_state:
                continue
            try:
                record = store.record(run)
                spec, rounds = record["spec"], record["rounds"]
                if record["state"] == "complete" and rounds == spec["training"][ROUNDS]:
                    problem = _other_software(record["versions"]) if has_state else NOT_KEPT
                    stack = record["execution"].get("stack") or [run]
                    key = _key(spec, record["code"], record["defaults"])
                    source = Source(run, rounds, tuple(stack), problem)
                    self._by_key.setdefault(key, []).append(source)
            except SPEC_ERRORS:
                continue  # A shared store may hold runs of other versions, and damaged ones.

    def of_runs(self, runs: Sequence[Run], keeps_state: bool) -> dict[str, Source]:
        """Return the source of each run that has one, of several that with most rounds.

        Args:
            runs: The runs of a bundle that are to be trained.
            keeps_state: Whether the bundle has `keep_state`. Without it no job looks for sources,
                as that reads the folder of the store.
        """
        by_run: dict[str, Source] = {}
        usable: dict[str, dict[str, Source]] = {}
        for run in runs:
            rounds = int(run.spec["training"][ROUNDS])
            key = _key(run.spec, run.code, run.defaults)
            shorter = [source for source in self._by_key.get(key, ()) if source.rounds < rounds]
            if shorter:
                best = max(shorter, key=lambda source: (not source.problem, source.rounds))
                problem = obstacle(run.spec) or best.problem
                problem = problem or (OTHER_STACK if keeps_state else NOT_SET)
                by_run[run.run] = best._replace(problem=problem)
                if problem == OTHER_STACK:
                    usable[run.run] = {s.run: s for s in shorter if not s.problem}
        heirs = {source: run for run, sources in usable.items() for source in sources}
        all_usable = [source for sources in usable.values() for source in sources.values()]
        for source in sorted(all_usable, key=lambda source: -source.rounds):
            stack_heirs = {heirs.get(member, "") for member in source.stack}
            if all(run in usable for run in stack_heirs):
                for member in source.stack:
                    by_run[heirs[member]] = usable.pop(heirs[member])[member]
        return by_run


NOT_KEPT = "its state was not kept, as `execution: {keep_state: true}` keeps it"

NOT_SET = "`execution: {keep_state: true}` is not set any more"

OTHER_STACK = "its stack has seeds that do not go on"


def _key(spec: Spec, code: Mapping[str, str], defaults: Sequence[str]) -> str:
    """Return a key that runs share which differ in their number of rounds alone."""
    training = {key: value for key, value in spec["training"].items() if key != ROUNDS}
    shared = [key for key in defaults if key != f"training.{ROUNDS}"]
    point = identity.point_id({**spec, "training": training}, code, shared)
    return identity.run_id(point, spec["seed"])


def _other_software(versions: Mapping[str, str]) -> str:
    """Return the first package whose version is not that of a stored run, as text."""
    for name, present in _software().items():
        if versions.get(name) != present:
            return f"{name} was {versions.get(name)}, and is {present}"
    return ""


@cache
def _software() -> dict[str, str]:
    """Return the versions of what computes a run's numbers, without importing it."""
    packages = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version(), **packages}


def source_lines(runs: Iterable[Run], sources: Mapping[str, Source]) -> Iterator[str]:
    """Yield lines on runs of which the store has some with fewer rounds, and whether they go on."""
    stored: dict[tuple[int, str], list[str]] = {}
    for run in runs:
        if source := sources.get(run.run):
            stored.setdefault((source.rounds, source.problem), []).append(source.run)
    for (rounds, problem), names in stored.items():
        of_round = f"round {rounds} of run {first_of(names, 'run')}"
        if problem:
            yield f"begins with round 1, not after {of_round}: {problem}"
        else:
            yield f"goes on from {of_round}"


def training_lines(bundles: Iterable[Bundle], store: Store) -> Iterator[str]:
    """Yield what is said before training: `room_lines`, and which runs go on."""
    keeping = [bundle for bundle in bundles if bundle.execution.keep_state]
    if keeping:
        yield from room_lines(keeping, store)
        stored = Sources(store, with_state=True)
    for bundle in keeping:
        runs = missing_runs(bundle, store)
        lines = source_lines(runs, stored.of_runs(runs, keeps_state=True))
        yield from (f"{bundle.title}: {line}" for line in lines)


def room_lines(bundles: Iterable[Bundle], store: Store) -> Iterator[str]:
    """Yield lines on the states that runs to be trained will keep: their room, and who keeps none.

    Args:
        bundles: The bundles of the runs.
        store: The store.
    """
    runs = [
        run
        for bundle in bundles
        if bundle.execution.keep_state
        for run in missing_runs(bundle, store)
    ]
    obstacles = {run.run: obstacle(run.spec) for run in runs}
    extensible = [run for run in runs if not obstacles[run.run]]
    sizes = [run.state_bytes for run in extensible if run.state_bytes]
    if sizes:
        runs_text = quantity(len(sizes), "run")
        yield f"keep_state: the last states of {runs_text} will take about {size(sum(sizes))}"
    if n_unsized := len(extensible) - len(sizes):
        runs_text = quantity(n_unsized, "run")
        yield f"keep_state: how much room the last states of {runs_text} take, only the data tell"
    for method, why in sorted({(run.method, obstacles[run.run]) for run in runs}):
        if why:
            yield f"keep_state: {method} keeps no state, as {why}"
