"""Very many clients, memory, and evaluation: ``python -m bench.scale``.

The whole way: a study of FedAvg and SCAFFOLD on generated data, command by command, each the
processor's seconds and the most memory that it ever had. 100 clients of 20 samples take part in
each of 100 rounds; every tenth is evaluated on 1,000 clients.

Rounds: each row is a process of its own, by the loop for ResNet-18 and stacked otherwise; the
processor's milliseconds a round (the median), the seconds of all rounds with their evaluations, and
the most memory that the process ever had. Clients have a quarter as many test samples as training
samples; with ResNet-18, whose batch normalisation stays with them (FedBN), each takes one step.
Evaluation: one of all clients beside one round, the shortest of some tries.

Clients with state: Ditto, whose clients keep a model and two momenta, 115 kB each. 100 take part in
each round and each client in one, as for `fedloom train`, with checkpoints; every 500th round is
evaluated on 1,000 clients, and all are evaluated at the end. The process may have 4 GiB of memory
of its own (``RLIMIT_DATA``), which counts neither shared libraries nor what the system keeps of
files and may drop; Arrow takes memory from the C library, as its own pool reserves 1 GiB that it
does not use. The files are below ``TMPDIR``. ``equal`` is a hash of the server, the metrics
and, of few clients, all states.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.timing import MODELS, begin, shortest, simulation
from bench.workloads import CLASSES, WORKLOADS, Workload
from fl.api import trees
from fl.engine import client_states, engine, simulate
from fl.engine.simulation import Simulation
from fl.engine.state import RoundSchedule, State
from fl.methods.ditto import Ditto
from fl.methods.fedavg import FedAvg
from fl.methods.fedbn import FedBN
from fl.methods.scaffold import Scaffold
from fl.models.cnn import CNN
from fl.models.mlp import MLP
from fl.models.resnet18 import ResNet18
from fl.runner.stack import CheckpointTimes, Stack
from fl.store.checkpoint import load_latest

METHODS: Mapping[str, Any] = {
    "FedAvg": FedAvg,
    "SCAFFOLD": Scaffold,
    "Ditto": Ditto,
    "FedBN": FedBN,
}
BUILT: Mapping[str, tuple[tuple[int, ...], Callable[..., Any]]] = {
    "MLP": ((64,), MLP((128,)).build),
    "CNN": ((1, 28, 28), CNN().build),
    "ResNet-18": ((3, 32, 32), ResNet18("imagenet").build),
}


@dataclass(frozen=True)
class Case:
    """What is run: ``taking`` of the clients take part in each of ``rounds`` rounds.

    every: rounds from one evaluation to the next; 0: there is none. scored: how many clients are
    evaluated; None: all.
    """

    method: str
    clients: int
    samples: int = 20
    taking: int = 100
    rounds: int = 100
    every: int = 0
    scored: int | None = None
    model: str = "MLP"
    backend: str = "stacked"


CASES = (
    *(
        Case(method, clients, every=10, scored=1000)
        for method in ("FedAvg", "SCAFFOLD")
        for clients in (1000, 342_477)
    ),
    *(Case(method, 20_000, every=10) for method in ("FedAvg", "SCAFFOLD", "Ditto")),
    Case("FedAvg", 3400, 100, 68, 4, 4, model="CNN"),
    Case("FedBN", 1000, 10, 1000, 1, model="ResNet-18", backend="loop"),
)


def measure(case: Case) -> dict[str, float]:
    """What a case costs in this process."""
    shape, build = BUILT[case.model]
    run = simulation(
        Workload("", case.clients, case.samples, shape, 10, 1, pixels=True),
        lambda: build(shape, CLASSES),
        method=METHODS[case.method](),
        tests=0.25,
        rounds=10**6,
        participation=case.taking / case.clients,
        evaluate_every=case.every or 10**6,
        evaluate_clients=case.scored,
    )
    before, begun = time.process_time(), time.perf_counter()
    spent = []
    for done in simulate.rounds(run, run.begin(), 0, case.backend):
        spent.append(time.process_time() - before)
        before = time.process_time()
        if done.number == case.rounds:
            break
    return {
        "round": 1e3 * float(np.median(spent)),
        "seconds": time.perf_counter() - begun,
        "took part": len(done.state.client_states.rows),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def rounds() -> None:
    """The table of rounds."""
    print("| method | clients x samples, model | a round | rounds | evaluated every | s | GiB |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for case in CASES:
        command = [sys.executable, "-m", "bench.scale", "--case", json.dumps(asdict(case))]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        cost: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"| {case.method} | {case.clients:,} x {case.samples}, {case.model} | {case.taking}: "
            f"{cost['round']:.1f} ms | {case.rounds} | {_evaluated(case)} "
            f"| {cost['seconds']:.1f} | {cost['memory']:.2f} |",
            flush=True,
        )


def _evaluated(case: Case) -> str:
    some = f", {case.scored:,} clients" if case.scored else ""
    return f"{case.every}{some}" if case.every else "never"


CLIENTS = 342_477
"""As many as Stack Overflow's data have for federated learning."""


def config(folder: Path, clients: int) -> None:
    """The config of the study ``many``, of so many clients."""
    study = {
        "datasets": [{"synthetic": {"clients": clients, "samples": 20}}],
        "partitions": ["natural"],
        "models": [{"mlp": {"hidden": [128]}}],
        "seeds": [0],
        "training": {
            "rounds": 100,
            "batch_size": 20,
            "participation": 100 / clients,
            "evaluate_every": 10,
            "evaluate_clients": 1000,
        },
        "methods": {"fedavg": None, "scaffold": None},
    }
    places = {key: str(folder / key) for key in ("results", "store", "data")}
    (folder / "studies").mkdir(parents=True)
    (folder / "methods").mkdir()
    # JSON is YAML.
    (folder / "studies" / "many.yaml").write_text(json.dumps(study))
    (folder / "config.yaml").write_text(json.dumps({"studies": ["many"], **places}))


def whole(folder: Path, clients: int) -> Iterator[tuple[str, float, float]]:
    """The commands of a study, from plan to report: each with the processor's seconds and GiB."""
    config(folder, clients)
    plan = folder / "results" / "plan"

    def named(kind: str) -> str:
        [path] = (plan / kind).glob("*.json")
        return path.stem

    yield "plan", *_cost(folder, "plan", "--write")
    yield "prepare", *_cost(folder, "prepare", named("datasets"))
    yield "partition", *_cost(folder, "partition", named("partitions"))
    for bundle in sorted((plan / "bundles").glob("*.json"), key=lambda path: path.read_text()):
        title = json.loads(bundle.read_text())["title"].split(" on ")[0]
        words = (str(bundle), "--store", str(folder / "store"))
        yield f"train, {title}", *_cost(None, "train", *words)
    yield "report", *_cost(folder, "report", "many")


def _cost(folder: Path | None, *words: str) -> tuple[float, float]:
    """The processor's seconds of a command, and the most memory that it ever had, in GiB."""
    location = ["--config", str(folder)] if folder else []
    command = [sys.executable, "-m", "fl", *words, *location]
    started = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(started.pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 2**20


def ways(sizes: tuple[int, int] = (1000, CLIENTS)) -> None:
    """The table of the whole way."""
    with tempfile.TemporaryDirectory() as folder:
        columns = [list(whole(Path(folder) / str(clients), clients)) for clients in sizes]
    heads = " | ".join(f"{clients:,} clients, s | GiB" for clients in sizes)
    print(f"\n| command | {heads} |\n|---|---:|---:|---:|---:|")
    for rows in zip(*columns, strict=True):
        costs = " | ".join(f"{seconds:.1f} | {memory:.2f}" for _, seconds, memory in rows)
        print(f"| {rows[0][0]} | {costs} |", flush=True)


@dataclass(frozen=True)
class Once(Simulation):
    """A run in which each client takes part in one round."""

    def round_schedule(self, round_: int, state: State | None = None) -> RoundSchedule:
        """The schedule of a round of the next clients."""
        taking = self.training.participants(self.client_data.clients)
        clients = np.arange(self.client_data.clients)[(round_ - 1) * taking : round_ * taking]
        return self.scheduler.round_schedule(round_, clients, ())


@dataclass(frozen=True)
class OnceCase:
    """A run of Ditto where each client takes part once.

    in_memory: whether states are in memory, without a limit; else as in a run. resumes: whether
    the last checkpoint is opened, too.
    """

    clients: int
    in_memory: bool = False
    resumes: bool = False


@dataclass(frozen=True)
class OnceCost:
    """Seconds and GiB of an `OnceCase`; ``processor`` is of a round, in milliseconds."""

    processor: float
    seconds: float
    checkpoint: float
    disk: float
    evaluation: float
    resumption: float
    memory: float
    equal: str


ONCE_CASES = (
    OnceCase(10_000, in_memory=True),
    OnceCase(10_000),
    OnceCase(100_000, resumes=True),
    OnceCase(CLIENTS),
)


def measure_once(case: OnceCase) -> OnceCost:
    """The cost of a case, in this process."""
    if case.in_memory:
        client_states.MEMORY_BYTES = 2**62
    else:
        resource.setrlimit(resource.RLIMIT_DATA, (2**32, 2**32))
    shape, build = BUILT["MLP"]
    rounds = -(-case.clients // 100)
    plain = simulation(
        Workload("", case.clients, 20, shape, 10, 1, pixels=True),
        lambda: build(shape, CLASSES),
        method=Ditto(),
        tests=0.25,
        rounds=rounds,
        participation=100 / case.clients,
        evaluate_every=500,
        evaluate_clients=1000,
    )
    run = Once(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stack = Stack.begin({"run": run}, {"run": None}, "stacked")
        stack.states["run"].client_states.file.folder = folder
        begun, used = time.perf_counter(), time.process_time()
        checkpoints = CheckpointTimes(None)
        for finished in simulate.lockstep(stack.simulations, stack.states, 0, "stacked"):
            stack.add(finished)
            if checkpoints.is_due(stack.round):
                with checkpoints.measure():
                    stack.save(folder / "checkpoint")
        seconds, processor = time.perf_counter() - begun, time.process_time() - used
        last = finished["run"].state
        stack.states = {"run": last}
        with checkpoints.measure():
            stack.save(folder / "checkpoint")
        blocks = {path.stat().st_ino: path.stat().st_blocks for path in folder.rglob("*")}
        equal = _hash_of(last, stack.table("run"), states=case.clients <= 20_000)
        begun = time.perf_counter()
        replace(run, training=replace(run.training, evaluate_clients=None)).evaluate(last, 1)
        evaluation, begun = time.perf_counter() - begun, time.perf_counter()
        if case.resumes:
            saved = load_latest(folder / "checkpoint")
            assert saved is not None
            Stack.resume(saved, {"run": run})
        return OnceCost(
            processor=1e3 * processor / rounds,
            seconds=seconds,
            checkpoint=checkpoints.seconds,
            disk=sum(blocks.values()) * 512 / 2**30,
            evaluation=evaluation,
            resumption=time.perf_counter() - begun,
            memory=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            equal=equal,
        )


def _hash_of(last: State, rows: pd.DataFrame, states: bool) -> str:
    """The first digits of a SHA-256 of the server, the metrics and, if asked, all clients."""
    digest = hashlib.sha256(pd.util.hash_pandas_object(rows).to_numpy().tobytes())
    clients = last.client_states
    trees_ = [last.server, *(map(clients.client, range(clients.count)) if states else ())]
    for leaf in (leaf for tree in trees_ for leaf in trees.leaves(tree)):
        digest.update(leaf.numpy().tobytes())
    return digest.hexdigest()[:8]


def with_state() -> None:
    """The table of clients with state."""
    heads = ("a round, ms", "all, s", "a checkpoint, s", "disk, GiB", "evaluated, s", "GiB")
    print(f"\n| clients | {' | '.join(heads)} | equal |\n|---|{'---:|' * len(heads)}---|")
    for case in ONCE_CASES:
        command = [sys.executable, "-m", "bench.scale", "--once", json.dumps(asdict(case))]
        environment = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system"}
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        )
        cost = OnceCost(**json.loads(done.stdout.splitlines()[-1]))
        memory = ", in memory" if case.in_memory else ""
        resumption = f", resumed in {cost.resumption:.0f} s" if case.resumes else ""
        print(
            f"| {case.clients:,}{memory}{resumption} | {cost.processor:.1f} | {cost.seconds:.0f} "
            f"| {cost.checkpoint:.1f} | {cost.disk:.1f} | {cost.evaluation:.0f} "
            f"| {cost.memory:.2f} | {cost.equal} |",
            flush=True,
        )


def evaluation(work: Workload, name: str, method: Any, tries: int = 3) -> tuple[float, float]:
    """Seconds of a round, and of an evaluation where each client has a third as many samples."""
    run = simulation(work, MODELS[name], method=method, tests=1 / 3)
    plan = run.round_schedule(1)
    # As after a round: every client has a model of its own.
    after, _ = engine.run_round(run.method, run.begin(), plan, "stacked")
    train = partial(engine.run_round, run.method, after, plan, "stacked")
    trained, scored = shortest([train, partial(run.evaluate, after, 1)], tries)
    return trained, scored


def evaluations() -> None:
    """The table of evaluations."""
    print("\n| one evaluation of all clients, of a round | FedAvg | Ditto |\n|---|---:|---:|")
    for name in ("W1", "W3", "W4"):
        shares = []
        for method in (FedAvg(), Ditto()):
            trained, scored = evaluation(WORKLOADS[name], name, method)
            shares.append(f"{scored / trained:.1%}")
        print(f"| {name}: {WORKLOADS[name].title} | {' | '.join(shares)} |", flush=True)


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", help="a case as JSON, measured in this process")
    parser.add_argument("--once", help="a case of clients with state, likewise")
    parser.add_argument("--states", action="store_true", help="the table of clients with state")
    asked = parser.parse_args()
    begin("many clients")
    if asked.case:
        print(json.dumps(measure(Case(**json.loads(asked.case)))))
        return
    if asked.once:
        print(json.dumps(asdict(measure_once(OnceCase(**json.loads(asked.once))))))
        return
    if not asked.states:
        rounds()
        ways()
        evaluations()
    with_state()


if __name__ == "__main__":
    main()
