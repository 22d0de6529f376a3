"""Running one round of a method: the backends.

``loop`` trains the participants one after another; ``stacked`` trains them at once, with
`torch.func.vmap` over stacked weights and buffers; ``compiled`` is ``stacked`` as one program of
several steps, see `fl.compiled`; ``debug`` is ``loop`` that names client, round and step in every
error and stops at the first loss that is not finite. They agree to rounding.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from fl import compiled, trees
from fl.data.batches import Arrays, Schedule
from fl.errors import FedloomError
from fl.method import Method, Pass
from fl.trees import Tree

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class State:
    """What a run carries from round to round: the server's tree and the stack of all clients."""

    server: dict[str, Any]
    clients: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One round: who takes part, on which batches, at which learning rate.

    clients: ids of the participants, int64 [m]; n: their numbers of training samples, [m];
    schedules: their batches in each pass, rows in the same order.
    """

    round: int
    clients: Tensor
    n: Tensor
    schedules: tuple[Schedule, ...]
    arrays: Arrays
    lr: float


def start(method: Method, variables: Tree, clients: int) -> State:
    """The state before round 1: every client starts alike, with its ``id``."""
    server, client = method.init(variables)
    device = next(iter(trees.leaves(variables))).device
    stack = trees.repeat(client, clients)
    return State(server, {**stack, "id": torch.arange(clients, device=device)})


def run_round(method: Method, state: State, plan: Plan, backend: str) -> tuple[State, Tensor]:
    """The state after one round, and the participants' mean training losses, [m]."""
    train = BACKENDS[backend]
    clients = trees.take(state.clients, plan.clients)
    for part, schedule in zip(method.passes, plan.schedules, strict=True):
        clients, uploads, losses = train(part, state.server, clients, plan, schedule)
    server, clients = method.aggregate(state.server, clients, uploads, plan.n)
    return State(server, trees.put(state.clients, plan.clients, clients)), losses


def _gradients(loss: Tensor, params: Tree) -> dict[str, Any]:
    return trees.unflatten(params, torch.autograd.grad(loss, trees.leaves(params)))


def _differentiable(work: Tree) -> dict[str, Any]:
    return {
        **work,
        "params": trees.apply(lambda p: p.detach().requires_grad_(), work["params"]),
    }


def _loop(
    part: Pass,
    server: Tree,
    clients: Tree,
    plan: Plan,
    schedule: Schedule,
    watch: Watch | None = None,
) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    done = []
    for row, steps in enumerate(schedule.steps):
        client = trees.take(clients, row)
        work = part.begin(server, client)
        index, weight = _batches(schedule, row, plan.arrays.device)
        total = torch.zeros((), dtype=torch.float64, device=index.device)
        for step in range(int(steps)):
            work = _differentiable(work)
            if watch:
                watch(int(plan.clients[row]), plan.round, step, None)
            batch = plan.arrays.batch(index[step], weight[step])
            loss, aux = part.loss(server, work, batch)
            if watch:
                watch(int(plan.clients[row]), plan.round, step, loss)
            grads = _gradients(loss, work["params"])
            with torch.no_grad():
                work = part.update(server, work, grads, _detached(aux), plan.lr)
            total = total + loss.detach()
        done.append((*part.end(server, client, work), total / int(steps)))
    kept, uploads, losses = zip(*done, strict=True)
    return trees.stack(kept), trees.stack(uploads), torch.stack(losses)


def _stacked(
    part: Pass, server: Tree, clients: Tree, plan: Plan, schedule: Schedule
) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    # Those with most steps come first, so that who finishes leaves from the end of the stack.
    order = np.argsort(-schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(plan.clients.device)
    steps = schedule.steps[order]
    index, weight = _batches(schedule, order, plan.arrays.device)
    work = vmap(part.begin, in_dims=(None, 0))(server, trees.take(clients, rows))
    objective = vmap(part.loss, in_dims=(None, 0, 0))
    finished: list[dict[str, Any]] = []
    totals = torch.zeros(len(order), dtype=torch.float64, device=index.device)
    active = len(order)
    for step in range(int(steps[0])):
        still = int((steps > step).sum())
        if still < active:
            finished.append(trees.take(work, slice(still, active)))
            work, active = trees.take(work, slice(0, still)), still
        work = _differentiable(work)
        batch = plan.arrays.batch(index[:active, step], weight[:active, step])
        losses, aux = objective(server, work, batch)
        grads = _gradients(losses.sum(), work["params"])
        with torch.no_grad():
            work = part.update(server, work, grads, _detached(aux), plan.lr)
        totals[:active] += losses.detach()
    work = trees.concatenate([work, *reversed(finished)])
    work = trees.take(work, torch.argsort(rows))
    kept, uploads = vmap(part.end, in_dims=(None, 0, 0))(server, clients, work)
    means = totals / torch.from_numpy(steps).to(totals.device)
    return kept, uploads, means[torch.argsort(rows)]


def _batches(schedule: Schedule, rows: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    return (
        torch.from_numpy(schedule.index[rows]).to(device),
        torch.from_numpy(schedule.weight[rows]).to(device),
    )


def _detached(tree: Tree) -> dict[str, Any]:
    return trees.apply(torch.Tensor.detach, tree)


Watch = Callable[[int, int, int, Tensor | None], None]
Backend = Callable[
    [Pass, Tree, Tree, Plan, Schedule], tuple[dict[str, Any], dict[str, Any], Tensor]
]


def _debug(
    part: Pass, server: Tree, clients: Tree, plan: Plan, schedule: Schedule
) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    place = "before the first step"

    def watch(client: int, round_: int, step: int, loss: Tensor | None) -> None:
        nonlocal place
        place = f"client {client}, round {round_}, step {step}"
        if loss is not None and not torch.isfinite(loss):
            raise FedloomError(f"{place}: the loss is {loss.item()}")

    try:
        return _loop(part, server, clients, plan, schedule, watch)
    except FedloomError:
        raise
    except Exception as error:
        raise FedloomError(f"{place}: {type(error).__name__}: {error}") from error


def _compiled(
    part: Pass, server: Tree, clients: Tree, plan: Plan, schedule: Schedule
) -> tuple[dict[str, Any], dict[str, Any], Tensor]:
    work = vmap(part.begin, in_dims=(None, 0))(server, clients)
    work, totals = compiled.train(part, server, work, plan.arrays, schedule, plan.lr)
    kept, uploads = vmap(part.end, in_dims=(None, 0, 0))(server, clients, work)
    return kept, uploads, totals / torch.from_numpy(schedule.steps).to(totals.device)


BACKENDS: dict[str, Backend] = {
    "loop": _loop,
    "stacked": _stacked,
    "compiled": _compiled,
    "debug": _debug,
}


PAYS = 600.0
"""Seconds of work ahead from which compiling, which takes tens of seconds, is worth a try."""


def choose(method: Method, state: State, plan: Plan, rounds: int) -> tuple[str, dict[str, float]]:
    """The fastest backend for ``rounds`` rounds like ``plan``, by a few real steps of each.

    Returns its name and the seconds a step of all participants took, by backend. Compiling is tried
    only where so much work lies ahead that it can pay. Nothing of the trial is kept.
    """
    seconds = {name: seconds_a_step(method, state, plan, name, 3) for name in ("loop", "stacked")}
    steps = rounds * sum(int(s.steps.max()) for s in plan.schedules)
    if min(seconds.values()) * steps > PAYS and compiled.available(plan.arrays.device):
        length = 3 * compiled.CHUNK
        try:
            seconds["compiled"] = seconds_a_step(method, state, plan, "compiled", length)
        except Exception as error:  # A compiler that does not work, or code it cannot take.
            reason = str(error).strip().split("\n")[0]
            logger.warning("not compiled (%s: %s)", type(error).__name__, reason)
    return min(seconds, key=seconds.__getitem__), seconds


def seconds_a_step(
    method: Method, state: State, plan: Plan, backend: str, steps: int, tries: int = 3
) -> float:
    """Seconds that a step of all participants takes: the shortest of some tries.

    The first try also warms up, and compiles.
    """
    short = tuple(replace(s, steps=np.minimum(s.steps, steps)) for s in plan.schedules)
    trial = replace(plan, schedules=short)
    times = []
    for _ in range(tries):
        begun = time.perf_counter()
        _, losses = run_round(method, state, trial, backend)
        losses.sum().item()
        times.append(time.perf_counter() - begun)
    return min(times) / sum(int(s.steps.max()) for s in short)
