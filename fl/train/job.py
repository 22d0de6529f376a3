"""Training the runs of a bundle: what is already there is skipped, what was begun is resumed.

Nothing here decides a number (see `fl.simulation.simulate`); this module watches, stores and
resumes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fl.code import plugins
from fl.errors import ConfigError, DataError, FedloomError, Where
from fl.files import parse_json
from fl.planning.plan_check import check_bundle
from fl.pytorch.memory import exhausted
from fl.schema import GLOBAL, PERSONAL
from fl.simulation import assembly, simulate, train_on
from fl.simulation.backends import TOGETHER
from fl.simulation.simulate import Simulation
from fl.store import checkpoint
from fl.store.store import Store
from fl.store.workspace import Workspace
from fl.study import specs
from fl.train import allocator, costs, memory
from fl.train.devices import claim
from fl.train.event_log import Journal
from fl.train.leaving import Interrupted, Leaving, asked_to_leave
from fl.train.progress import Progress
from fl.train.stack import Course
from fl.version import VERSION

logger = logging.getLogger(__name__)

Bundle = Mapping[str, Any]
Member = Mapping[str, Any]


def read_bundle(path: Path) -> dict[str, Any]:
    """A bundle's spec file, as `fl.planning.plan` writes it."""
    try:
        found = parse_json(path.read_bytes())
        check_bundle(found, Where("it"))
    except (OSError, ValueError, ConfigError) as error:
        raise DataError(
            f"{path}: cannot be read as a bundle ({type(error).__name__}: {error}); "
            "allowed: a file that `python -m fl plan --write` put into results/plan/bundles"
        ) from None
    return dict(found)


def train_bundle(bundle: Bundle, store: Store) -> list[str]:
    """Train every run that the store lacks. A failing run does not stop the others.

    Returns a line for each failed run: its id, the seed and the error; tracebacks go to the log.
    Raises `Interrupted` on SIGTERM and on Ctrl-C, once the runs in progress are in a checkpoint;
    `KeyboardInterrupt` on a second Ctrl-C, and on the first where nothing has to be saved.
    """
    plugins.use(bundle["plugins"], Where(f"bundle {bundle['bundle']}") / "plugins")
    torch.set_num_threads(bundle["execution"]["threads"])
    allocator.keep()
    if torch.cuda.is_available():  # On the CPU nothing asks for it, and it costs a second.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    with asked_to_leave() as leaving, contextlib.ExitStack() as held:
        job = _Job(bundle, store, leaving)
        # In one order in all processes, so that no two wait for each other.
        for member in sorted(bundle["runs"], key=lambda m: m["run"]):
            with job.failing(member["run"]):
                opened = store.open(member["run"], member["keep_weights"], leaving.now)
                workspace = held.enter_context(opened)
                if workspace is not None:
                    job.workspaces[member["run"]] = workspace
                    continue
                logger.info("%s: already there", job.name(member["run"]))
                job.backend = store.record(member["run"])["execution"]["backend"]
        if job.workspaces:
            with claim(bundle["execution"]["device"], leaving.now) as device:
                job.train(device)
    return job.failed


class _Job:
    """A bundle being trained.

    workspaces: of the runs that this process computes. backend: of runs that were there already, as
    all runs of a bundle should be comparable to the bit. failed: a line for each.
    """

    def __init__(self, bundle: Bundle, store: Store, leaving: Leaving) -> None:
        self._bundle, self._store, self._leaving = bundle, store, leaving
        self._members: dict[str, Member] = {m["run"]: m for m in bundle["runs"]}
        self.workspaces: dict[str, Workspace] = {}
        self.backend: str | None = None
        self.failed: list[str] = []
        self._costs: dict[str, Any] | None = None
        self._journals = {run: Journal(Path(bundle["results"]), run) for run in self._members}

    def name(self, run: str) -> str:
        """A run as messages say it."""
        seed = self._members[run]["spec"]["seed"]
        return f"{run} ({self._bundle['title']}, seed {seed})"

    @contextlib.contextmanager
    def failing(self, *runs: str) -> Iterator[None]:
        """What goes wrong inside is written down as the runs' failure."""
        try:
            yield
        except Interrupted:
            raise
        except Exception as error:
            self._leaving.now()  # Ctrl-C ends a compiler too, which is no failure of the run.
            if exhausted(error):
                error = FedloomError(memory.told(error))
            known = isinstance(error, FedloomError)
            text = str(error) if known else f"{type(error).__name__}: {error}"
            for run in runs:
                self.failed.append(f"{self.name(run)}: {text}")
                self._journals[run].ended("failed", error=text)
                if run in self.workspaces:
                    self.workspaces[run].fail(text)
            names = ", ".join(map(self.name, runs))
            if known:
                logger.error("%s: %s", names, error)
            else:
                logger.error("%s failed:\n%s", names, traceback.format_exc())

    def train(self, device: torch.device) -> None:
        """All runs that have a workspace: those with a checkpoint first, as they began."""
        simulations = self._simulations(device)
        left = dict.fromkeys(run for run in self._members if run in self.workspaces)
        for run in list(left):
            if run not in left or run not in simulations:
                continue
            with self.failing(run):
                saved = checkpoint.load_latest(self.workspaces[run].checkpoints)
                if saved is not None:
                    course = Course.resume(saved, simulations)
                    self.backend = course.backend
                    for member in course.members:
                        left.pop(member, None)
                    self._attempt(course)
        weights: dict[str, Any] = {}
        for run in [run for run in left if run in simulations]:
            with self.failing(run):
                weights[run] = self._weights(run, device)
        if weights:
            with self.failing(*weights):
                self._start({run: simulations[run] for run in weights}, weights)

    def _simulations(self, device: torch.device) -> dict[str, Simulation]:
        """Of all runs of the bundle whose code is as it was planned; they share the data."""
        found: dict[str, Simulation] = {}
        for run, member in self._members.items():
            with self.failing(*([run] if run in self.workspaces else [])):
                _check_code(member)
                spec = member["spec"]
                if found:
                    found[run] = assembly.reseeded(
                        next(iter(found.values())), spec, specs.parts_of(spec)
                    )
                else:
                    simulation = specs.assemble(spec, self._bundle, device)
                    if isinstance(spec.get("train_on"), str):
                        simulation = train_on.images(simulation, self._images(spec["train_on"]))
                    memory.check(simulation)
                    found[run] = simulation
        return found

    def _weights(self, run: str, device: torch.device) -> dict[str, Any] | None:
        """The stored model that a run starts from, if it does."""
        start = self._members[run]["start"]
        if not start or self._members[run]["spec"].get("train_on") == start:
            return None
        weights = self._store.weights(start, device)
        if not isinstance(weights.get(GLOBAL), dict):
            raise DataError(f"{self._store.place(start)}: its weights are of no shared model")
        return dict(weights[GLOBAL])

    def _images(self, run: str) -> torch.Tensor:
        """The stored images of every client, [clients, classes x count, ...]."""
        found = self._store.weights(run, torch.device("cpu")).get(PERSONAL, {}).get("images")
        if found is None:
            raise DataError(f"{self._store.place(run)}: has no images to train on")
        return torch.as_tensor(found)

    def _start(self, simulations: Mapping[str, Simulation], weights: Mapping[str, Any]) -> None:
        """Begin and train; of runs that cannot begin together, each by itself."""
        try:
            course = self._begin(simulations, weights)
        except Exception:
            if len(simulations) == 1:
                raise
            for run in simulations:
                with self.failing(run):
                    self._start({run: simulations[run]}, {run: weights[run]})
            return
        self._attempt(course)

    def _begin(self, simulations: Mapping[str, Simulation], weights: Mapping[str, Any]) -> Course:
        backend = self._bundle["execution"]["backend"]
        if backend == "auto":
            backend = self.backend or "auto"
        course = Course.begin(simulations, weights, backend)
        if backend == "auto":
            course.choose()
        return course

    def _attempt(self, course: Course) -> None:
        """Train a course; runs that gain nothing from each other, or of which one fails, apart."""
        if len(course.members) > 1 and course.backend not in TOGETHER:
            for one in course.split():
                with self.failing(*one.members):
                    self._follow(one)
            return
        try:
            self._follow(course)
        except Interrupted:
            raise
        except Exception:
            mine = [run for run in course.members if run in self.workspaces]
            if len(mine) == 1:
                raise
            logger.warning("a stack of %d runs failed; trained one by one:", len(mine))
            for run in mine:
                with self.failing(run):
                    simulation = course.simulations[run]
                    weights = self._weights(run, simulation.arrays.device)
                    self._follow(self._begin({run: simulation}, {run: weights}))

    def _follow(self, course: Course) -> None:
        """Round after round, to the end or to the request to leave."""
        self._leaving.now()
        self._leaving.begun = False
        rounds = next(iter(course.simulations.values())).training.rounds
        seeds = [str(self._members[run]["spec"]["seed"]) for run in course.members]
        plural = "s" if len(seeds) > 1 else ""
        title = f"{self._bundle['title']} seed{plural} {', '.join(seeds)}"
        progress = Progress(title, rounds, course.round)
        mine = [run for run in course.members if run in self.workspaces]
        for run in mine:
            self._journals[run].begun(course.round, {"backend": course.backend}, self._curves(run))
        every = self._bundle["execution"]["checkpoint_every"]
        for finished in simulate.lockstep(
            course.simulations, course.states, course.round, course.backend
        ):
            self._leaving.begun = True
            course.add(finished)
            for run in set(mine) & set(finished):
                self._journals[run].round(finished[run])
            progress.show(course.round, min(one.loss for one in finished.values()))
            ended = [run for run, one in finished.items() if one.diverged]
            if course.round == rounds:
                ended = list(finished)
            goes_on = len(ended) < len(finished)
            if goes_on and (ended or self._leaving.asked or course.round % every == 0):
                self._save(course)
            # The first last: it holds the checkpoint of all.
            for run in reversed(ended):
                self._finish(run, course, finished[run])
            if goes_on and self._leaving.asked:
                for run in set(mine) & set(course.states):
                    self._journals[run].ended("left", round=course.round)
                raise Interrupted(f"{', '.join(course.states)}: left after round {course.round}")

    def _save(self, course: Course) -> None:
        owner = next((run for run in course.states if run in self.workspaces), None)
        if owner is None:
            return
        if self.workspaces[owner].lost:
            raise FedloomError("another process has taken this run over; it goes on there")
        course.save(self.workspaces[owner].checkpoints)

    def _finish(self, run: str, course: Course, last: simulate.Round) -> None:
        if run not in self.workspaces:
            return
        member, simulation = self._members[run], course.simulations[run]
        final = simulation.final(last.state) if member["keep_weights"] else None
        if self._costs is None:  # Those of all runs of a bundle, which differ in their seed only.
            self._costs = costs.recorded(simulation, last.state)
        record = _record(member, self._bundle, course, last, simulation.arrays.device)
        record["costs"] = self._costs
        self.workspaces[run].finish(record, course.rows[run], final, course.kept(run))
        self._journals[run].ended("finished", state=record["state"], seconds=record["seconds"])

    def _curves(self, run: str) -> Path | None:
        """Where TensorBoard finds a run, if that is asked for."""
        if not self._bundle["execution"].get("tensorboard"):
            return None
        title = re.sub(r"[^\w.=()-]+", "-", self._bundle["title"])[:100]
        seed = self._members[run]["spec"]["seed"]
        logs = Path(self._bundle["results"]) / "logs"
        return logs / "tensorboard" / title / f"seed-{seed}-{run[:6]}"


def _check_code(member: Member) -> None:
    """A run is only computed by the code that it was planned with."""
    now, planned = specs.code(member["spec"]), member["code"]
    changed = [key for key, code in planned.items() if now.get(key) != code]
    if changed:
        raise FedloomError(
            f"{member['run']}: the code of its {', '.join(changed)} changed after it was planned; "
            "plan again (start snakemake again, or `python -m fl plan --write`)"
        )


def _record(
    member: Member, bundle: Bundle, course: Course, last: simulate.Round, device: torch.device
) -> dict[str, Any]:
    """What ``run.json`` says, beside the hashes of the run's files."""
    return {
        "run": member["run"],
        "state": "diverged" if last.diverged else "complete",
        "spec": member["spec"],
        "code": member["code"],
        "code_files": specs.code_files(member["spec"]),
        "start": member["start"],
        "versions": {
            "fedloom": VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "execution": {
            "backend": course.backend,
            "stack": course.members,
            "trial": course.trial,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": bundle["execution"]["threads"],
        },
        "rounds": course.round,
        "seconds": round(course.seconds[member["run"]], 3),
        "note": last.trouble,
    }
