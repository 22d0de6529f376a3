"""Training the runs of a bundle: what is already there is skipped, what was begun is resumed.

Nothing here decides a number (see `fl.simulate`); this module watches, stores and resumes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import signal
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd
import torch

from fl import checkpoint, engine, materials, plugins, simulate
from fl.data.batches import Arrays
from fl.devices import claim
from fl.engine import State
from fl.errors import DataError, FedloomError, Where
from fl.evaluate import Held, as_rows
from fl.files import disk_errors
from fl.method import Setting
from fl.network import Network
from fl.progress import Progress
from fl.schema import GLOBAL
from fl.simulate import DTYPES, Simulation
from fl.store import Store, Workspace
from fl.training import Training
from fl.version import VERSION

logger = logging.getLogger(__name__)

Bundle = Mapping[str, Any]
Member = Mapping[str, Any]


class Interrupted(Exception):
    """The job was asked to leave (SIGTERM); its state is in a checkpoint."""


def read_bundle(path: Path) -> dict[str, Any]:
    """A bundle's spec file, as `fl.plan` writes it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for key in ("bundle", "runs", "execution", "plugins"):
            if not found[key] and key != "plugins":
                raise KeyError(key)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: cannot be read as a bundle ({type(error).__name__}: {error}); "
            "allowed: a file that `python -m fl plan --write` put into results/plan/bundles"
        ) from None
    return dict(found)


def train_bundle(bundle: Bundle, store: Store) -> list[str]:
    """Train every run that the store lacks. A failing run does not stop the others.

    Returns a line for each failed run: its id, the seed and the error; tracebacks go to the log.
    Raises `Interrupted` on SIGTERM, once the run in progress is in a checkpoint.
    """
    plugins.use(bundle["plugins"], Where(f"bundle {bundle['bundle']}") / "plugins")
    bundle = {**bundle, "execution": dict(bundle["execution"])}
    torch.set_num_threads(bundle["execution"]["threads"])
    if torch.cuda.is_available():  # On the CPU nothing asks for it, and it costs a second.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    failed = []
    with _asked_to_leave() as leaving:
        for member in bundle["runs"]:
            name = f"{member['run']} ({bundle['title']}, seed {member['spec']['seed']})"
            try:
                with store.open(member["run"], member["keep_weights"], leaving.now) as workspace:
                    if workspace is None:
                        logger.info("%s: already there", name)
                        if bundle["execution"]["backend"] == "auto":
                            record = store.record(member["run"])
                            bundle["execution"]["backend"] = record["execution"]["backend"]
                    else:
                        _train(member, bundle, store, workspace, leaving)
            except Interrupted:
                raise
            except FedloomError as error:
                logger.error("%s: %s", name, error)
                failed.append(f"{name}: {error}")
            except Exception as error:
                logger.error("%s failed:\n%s", name, traceback.format_exc())
                failed.append(f"{name}: {type(error).__name__}: {error}")
    return failed


@dataclass
class _Leaving:
    asked: bool = False

    def now(self) -> None:
        """Leave, where there is nothing to save: for waits and between runs."""
        if self.asked:
            raise Interrupted("before the next run had begun")


@contextlib.contextmanager
def _asked_to_leave() -> Iterator[_Leaving]:
    leaving = _Leaving()

    def note(number: int, frame: FrameType | None) -> None:
        leaving.asked = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield leaving
    finally:
        signal.signal(signal.SIGTERM, before)


def _train(
    member: Member, bundle: Bundle, store: Store, workspace: Workspace, leaving: _Leaving
) -> None:
    _check_code(member)
    with claim(bundle["execution"]["device"], leaving.now) as device:
        simulation = assemble(member["spec"], bundle, device)
        weights = store.weights(member["start"], device)[GLOBAL] if member["start"] else None
        course = _Course.begin(simulation, workspace, weights, bundle["execution"]["backend"])
        # One choice serves all runs of the bundle, so that they are comparable to the bit.
        bundle["execution"]["backend"] = course.backend
        progress = Progress(
            f"{bundle['title']} seed {member['spec']['seed']}",
            simulation.training.rounds,
            course.round,
        )
        every = bundle["execution"]["checkpoint_every"]
        for done in simulate.rounds(simulation, course.state, course.round, course.backend):
            course.add(done)
            progress.show(done.number, done.loss)
            last = done.diverged or done.number == simulation.training.rounds
            if not last and (leaving.asked or done.number % every == 0):
                course.save(workspace)
            if not last and leaving.asked:
                raise Interrupted(f"{member['run']}: left after round {done.number}")
        record = _record(member, bundle, course, device)
        final = simulation.final(course.state) if member["keep_weights"] else None
        workspace.finish(record, course.rows, final)


def assemble(spec: Mapping[str, Any], bundle: Bundle, device: torch.device) -> Simulation:
    """The simulation that a run's spec describes; missing data and partitions are made."""
    root, results = Path(bundle["data"]), Path(bundle["results"])
    supply = materials.supply(spec["dataset"], bundle["sources"], bundle["lock"])
    prepared = materials.prepare(spec["dataset"], root, supply)
    table = materials.partition(spec["partition"], spec["dataset"], root, results)
    training = Training(**spec["training"])
    dtype, held = DTYPES[training.precision], Held.of(table)
    _, model = materials.entry_of("model", spec["model"])
    _, method = materials.entry_of("method", spec["method"])
    shape, classes = prepared.x.shape[1:], len(prepared.classes)
    network = Network(lambda: model.build(shape, classes), dtype)
    return Simulation(
        method=method.build(Setting(network, training, classes, held.clients)),
        network=network,
        training=training,
        arrays=Arrays(prepared.x, prepared.y, prepared.normalisation, device, dtype),
        held=held,
        classes=classes,
        seed=spec["seed"],
    )


def _check_code(member: Member) -> None:
    """A run is only computed by the code that it was planned with."""
    now, planned = materials.code(member["spec"]), member["code"]
    changed = [key for key, code in planned.items() if now[key] != code]
    if changed:
        raise FedloomError(
            f"{member['run']}: the code of its {', '.join(changed)} changed after it was planned; "
            "plan again (start snakemake again, or `python -m fl plan --write`)"
        )


@dataclass
class _Course:
    """Where a run stands: its state after ``round``, and what has been written down so far."""

    state: State
    round: int
    rows: pd.DataFrame
    backend: str
    trial: dict[str, float]
    seconds: float
    diverged: bool = False
    since: float = 0.0

    @classmethod
    def begin(
        cls,
        simulation: Simulation,
        workspace: Workspace,
        weights: dict[str, Any] | None,
        backend: str,
    ) -> _Course:
        """From the newest whole checkpoint, or from the start."""
        begun = time.monotonic()
        saved = checkpoint.load_latest(workspace.checkpoints, simulation.arrays.device)
        if saved is not None:
            logger.info("resumed after round %d", saved.round)
            state = State(saved.state["server"], saved.state["clients"])
            return cls(state, saved.round, saved.rows, **saved.extra, since=begun)
        state = simulation.begin(weights)
        rows = as_rows([]) if weights is None else simulation.before(weights)
        trial: dict[str, float] = {}
        if backend == "auto":
            backend, trial = engine.choose(
                simulation.method, state, simulation.plan(1), simulation.training.rounds
            )
            timed = ", ".join(f"{name} {1e3 * t:.2f} ms" for name, t in trial.items())
            logger.info("backend %s (a step of all participants: %s)", backend, timed)
        return cls(state, 0, rows, backend, trial, seconds=0.0, since=begun)

    def add(self, done: simulate.Round) -> None:
        """One more round."""
        self.state, self.round, self.diverged = done.state, done.number, done.diverged
        self.rows = pd.concat([self.rows, done.rows], ignore_index=True)

    def elapsed(self) -> float:
        """Seconds of work, those before a resume included."""
        return self.seconds + time.monotonic() - self.since

    def save(self, workspace: Workspace) -> None:
        """A checkpoint of this round."""
        if workspace.lost:
            raise FedloomError("another process has taken this run over; it goes on there")
        state = {"server": self.state.server, "clients": self.state.clients}
        extra = {"backend": self.backend, "trial": self.trial, "seconds": self.elapsed()}
        with disk_errors(workspace.checkpoints):
            checkpoint.save(workspace.checkpoints, self.round, state, extra, self.rows)


def _record(
    member: Member, bundle: Bundle, course: _Course, device: torch.device
) -> dict[str, Any]:
    """What ``run.json`` says, beside the hashes of the run's files."""
    note = f"the loss was no longer finite in round {course.round}" if course.diverged else ""
    return {
        "run": member["run"],
        "state": "diverged" if course.diverged else "complete",
        "spec": member["spec"],
        "code": member["code"],
        "code_files": materials.code_files(member["spec"]),
        "start": member["start"],
        "versions": {
            "fedloom": VERSION,
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "execution": {
            "backend": course.backend,
            "trial": course.trial,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "threads": bundle["execution"]["threads"],
        },
        "rounds": course.round,
        "seconds": round(course.elapsed(), 3),
        "note": note,
    }
