"""PFLlib's servers and clients, executed from a copy in which named expressions are replaced.

The copy lies in a temporary folder. What the harness replaces in every run is no method: files of
data, evaluation, and what is written to disk. Participants and batches are those of our run.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bench.released_rounds.edits import Departure, Edit
from bench.released_rounds.loaders import LAST_PASS, Calls, Feed
from bench.released_rounds.population import (
    BATCH,
    CLASSES,
    LEARNING_RATE,
    NETWORKS,
    SIZES,
    TRAINING,
    Trained,
)
from bench.released_rounds.readers import by_name, statistics
from fl.base.errors import DataError
from fl.engine.simulation import Simulation

COMMIT = "d832e76"

UNUSED_MODULES = ("h5py", "calmsize")
"""Modules that PFLlib imports for files of results and reports of memory."""

ARGUMENTS: Mapping[str, Any] = {
    "device": "cpu",
    "dataset": "none",
    "algorithm": "none",
    "num_classes": CLASSES,
    "global_rounds": TRAINING["rounds"] - 1,
    "local_epochs": TRAINING["local_epochs"],
    "plocal_epochs": TRAINING["local_epochs"],
    "batch_size": BATCH,
    "local_learning_rate": LEARNING_RATE,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 1.0,
    "num_clients": len(SIZES),
    "join_ratio": TRAINING["participation"],
    "random_join_ratio": False,
    "few_shot": 0,
    "time_select": False,
    "goal": "none",
    "time_threthold": 1e9,
    "save_folder_name": "none",
    "top_cnt": 0,
    "auto_break": False,
    "eval_gap": 1,
    "client_drop_rate": 0.0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "dlg_eval": False,
    "dlg_gap": 1,
    "batch_num_per_client": 1,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
}
"""PFLlib's options; its rounds are counted from 0 to `global_rounds`."""


def unchanged(server: Any, trained: Trained, feed: Feed) -> None:
    """Leave a server as it was made."""


def leave_clients(server: Any) -> None:
    """Send nothing after the last round."""


def send_last_model(server: Any) -> None:
    """Send the last shared model to all clients, as PFLlib does before it evaluates."""
    server.send_models()


@dataclass(frozen=True)
class Comparison:
    """A method, ours and PFLlib's.

    Attributes:
        method: Our method, as a component.
        server: The module and the class of PFLlib's server.
        options: Options of PFLlib.
        training: Training settings of ours beside `population.TRAINING`.
        networks: Names of the networks on which the method runs.
        departures: Departures of PFLlib's code that are undone.
        harness: Other expressions of its code that are replaced.
        calls: See `loaders.Feed`.
        first_calls: See `loaders.Feed`.
        arrange: See `loaders.Feed`.
        repeats: See `loaders.Feed`.
        shared: The shared model of a server; None: not compared.
        personal: The model of a client with which it predicts; None: not compared.
        pairs: Other tensors, ours and PFLlib's, that are compared.
        uploaded: The model of a client that it uploads.
        receivers: Other models of a client that running statistics are sent to.
        weight: The weight of a client in the average of running statistics.
        exchange: The server's functions that send and average.
        statistics: Whether running statistics of batch normalisation are sent and averaged.
        personal_statistics: Whether those of personal models are compared.
        prepare: Function that gives the server weights of ours that PFLlib draws itself.
        finish: Function that is called after the last round.
    """

    method: Any
    server: str
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    networks: Sequence[str] = tuple(NETWORKS)
    departures: tuple[Departure, ...] = ()
    harness: tuple[Edit, ...] = ()
    calls: Calls = ((LAST_PASS,),)
    first_calls: Calls = ()
    arrange: Callable[[Tensor], Tensor] = lambda index: index
    repeats: int = 1
    shared: Callable[[Any], nn.Module] | None = None
    personal: Callable[[Any], nn.Module] | None = None
    pairs: Callable[[Trained, Any], Iterable[tuple[Tensor, Tensor]]] = lambda trained, server: ()
    uploaded: Callable[[Any], nn.Module] = lambda client: client.model
    receivers: Callable[[Any], Sequence[nn.Module]] = lambda client: ()
    weight: Callable[[Any], float] = lambda client: client.train_samples
    exchange: tuple[str, str] = ("send_models", "aggregate_parameters")
    statistics: Literal["local", "sent to participants", "sent"] = "sent"
    personal_statistics: bool = True
    prepare: Callable[[Any, Trained, Feed], None] = unchanged
    finish: Callable[[Any], None] = send_last_model


def check_commit(repository: Path) -> None:
    """Check that a clone has PFLlib's code of `COMMIT`.

    Raises:
        DataError: If it has another commit, changed files, or is no clone.
    """

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(repository), *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        found, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "system")
    except (subprocess.CalledProcessError, OSError) as error:
        advice = f"clone PFLlib there and check {COMMIT} out"
        raise DataError(f"{repository}: is no clone of PFLlib", advice=advice) from error
    if not found.startswith(COMMIT):
        raise DataError(
            f"{repository}: has commit {found[: len(COMMIT)]}, not {COMMIT}",
            advice=f"`git -C {repository} checkout {COMMIT}`",
        )
    if changed:
        raise DataError(
            f"{repository}: files differ from commit {COMMIT}: {', '.join(changed.split()[1::2])}",
            advice=f"`git -C {repository} stash`",
        )


@contextlib.contextmanager
def imported(repository: Path, edits: Sequence[Edit]) -> Iterator[None]:
    """Make a copy with replaced expressions importable, for as long as the context lasts.

    Raises:
        ValueError: If a file does not have an expression that is to be replaced.
    """
    known, path = set(sys.modules), list(sys.path)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("flcore", "utils"):
            shutil.copytree(repository / "system" / part, folder / part)
        for edit in edits:
            file = folder / edit.file
            text = file.read_text()
            if edit.old not in text:
                raise ValueError(f"{edit.file}: does not have {edit.old!r}")
            file.write_text(text.replace(edit.old, edit.new))
        sys.path.insert(0, name)
        for module in UNUSED_MODULES:
            sys.modules.setdefault(module, ModuleType(module))
        sys.modules["h5py"].File = None  # type: ignore[attr-defined]
        sys.modules["calmsize"].size = None  # type: ignore[attr-defined]
        try:
            yield
        finally:
            sys.path[:] = path
            for module in set(sys.modules) - known:
                if module.split(".")[0] in ("flcore", "utils", *UNUSED_MODULES):
                    del sys.modules[module]


@contextlib.contextmanager
def double_precision() -> Iterator[None]:
    """Make new tensors float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def split_network(network: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Return a network with given weights as PFLlib has it: all but the last layer, and that."""
    network.double().load_state_dict(weights, strict=False)
    models: Any = importlib.import_module("flcore.trainmodel.models")
    *body, head = network.children()
    split: nn.Module = models.BaseHeadSplit(nn.Sequential(*body), head)
    return split


def attach(feed: Feed) -> None:
    """Give PFLlib the participants and batches of a run, and leave out files and evaluation."""
    data: Any = importlib.import_module("utils.data_utils")
    data.read_client_data = lambda dataset, client, *_, **__: feed.everything(client)
    base: Any = importlib.import_module("flcore.servers.serverbase")
    client_base: Any = importlib.import_module("flcore.clients.clientbase")

    def select(self: Any) -> list[Any]:
        self.current_num_join_clients = self.num_join_clients
        return [self.clients[client] for client in feed.begin_round()]

    base.Server.select_clients = select
    client_base.Client.load_train_data = lambda self, batch_size=None: feed.loader(
        self.id, batch_size
    )


def leave_out_files_and_scores(server_class: Any) -> None:
    """Make a server write and evaluate nothing."""

    def score(self: Any, acc: Any = None, loss: Any = None) -> None:
        for name, scores in vars(self).items():
            if name.startswith("rs_"):
                scores.append(0.0)

    evaluations = "evaluate", "evaluate_personalized", "evaluate_one_step"
    for name in (*evaluations, "avg_generalization_metrics"):
        setattr(server_class, name, score)
    for name in ("save_results", "save_global_model"):
        setattr(server_class, name, lambda self: None)


def average_running_statistics(server: Any, model: nn.Module, comparison: Comparison) -> None:
    """Make a server send and average the running statistics of batch normalisation.

    PFLlib sends and averages parameters alone (`clients/clientbase.py:67`,
    `servers/serverbase.py:138`), so that running statistics stay with each client.

    Args:
        server: The server.
        model: The first model.
        comparison: The comparison, which says which models send and receive.
    """
    send, aggregate = (getattr(server, name) for name in comparison.exchange)
    shared = {name: tensor.clone() for name, tensor in statistics(model).items()}

    def send_statistics(*arguments: Any) -> None:
        send(*arguments)
        everyone = comparison.statistics == "sent"
        for client in server.clients if everyone else server.selected_clients:
            for receiver in (comparison.uploaded(client), *comparison.receivers(client)):
                _load(receiver, shared)

    def aggregate_statistics() -> None:
        aggregate()
        clients = server.selected_clients
        weights = [comparison.weight(client) for client in clients]
        for name, mean in shared.items():
            mean.zero_()
            for weight, client in zip(weights, clients, strict=True):
                mean += statistics(comparison.uploaded(client))[name] * (weight / sum(weights))
        if isinstance(getattr(server, "global_model", None), nn.Module):
            _load(server.global_model, shared)

    replaced = send_statistics, aggregate_statistics
    for name, function in zip(comparison.exchange, replaced, strict=True):
        setattr(server, name, function)


def _load(model: nn.Module, running: Mapping[str, Tensor]) -> None:
    for own, new in by_name(statistics(model), running):
        own.copy_(new)


def run(
    repository: Path, comparison: Comparison, network: str, begun: Simulation, trained: Trained
) -> Any:
    """Run PFLlib's server and clients.

    Args:
        repository: A clone of PFLlib.
        comparison: The method, as PFLlib has it.
        network: The name of the network.
        begun: Our run.
        trained: Our run's result, with the batches.

    Returns:
        PFLlib's server after the last round; it has sent its last model to all clients.
    """
    feed = Feed(
        trained.schedules,
        begun.arrays,
        comparison.calls,
        comparison.first_calls,
        comparison.arrange,
        comparison.repeats,
    )
    options = {**ARGUMENTS, **comparison.options}
    weights = trained.variables["params"]
    edits = [edit for departure in comparison.departures for edit in departure.edits]
    with imported(repository, (*comparison.harness, *edits)), double_precision(), silence():
        attach(feed)
        random.seed(0)
        torch.manual_seed(0)
        options["model"] = split_network(NETWORKS[network](), weights)
        module, name = comparison.server.split(".")
        server_class = getattr(importlib.import_module(f"flcore.servers.{module}"), name)
        leave_out_files_and_scores(server_class)
        server = server_class(SimpleNamespace(**options), 0)
        comparison.prepare(server, trained, feed)
        if comparison.statistics != "local":
            average_running_statistics(server, options["model"], comparison)
        server.train()
        comparison.finish(server)
    return server


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Leave out what PFLlib prints and warns of."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
