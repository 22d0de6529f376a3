"""The compiled stack: several steps of all clients as one program of `torch.compile`.

Shapes never change, so the program is compiled once: the stack keeps its width, clients take turns
in its rows, the number of steps is padded to whole programs, and the tree of a client without
remaining steps does not change. On a CPU a program is one C++ file, so that Python does not call
each kernel.

If each client had its own row, the program would train finished clients for nothing until the
client with most steps has finished. So there are fewer rows than clients, and a row that becomes
free goes to the next client (`Turns`).
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from functools import cache
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fl.api import trees
from fl.api.method import Pass
from fl.api.optimizers import clipped
from fl.api.protocols import Batch
from fl.api.trees import Rate, Tree
from fl.engine.batches import Schedule
from fl.engine.loader import Batches, add_reference_outputs
from fl.engine.sample_arrays import Arrays
from fl.pytorch import torch_internals

logger = logging.getLogger(__name__)

Program = Callable[[Tree, Tree, list[Batch], list[Tensor], Tensor], tuple[Tree, Tensor]]
"""Function (server, work, batches, active, lr) -> (work, losses)."""

STEPS_PER_PROGRAM = 4
"""Steps in one program.

A call costs as much time as a step of a small model, and each further step makes compiling longer.
"""


def is_available(device: torch.device) -> bool:
    """Whether `torch.compile` works for a device: for a CPU it needs a C++ compiler."""
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
    has_compiler = device.type != "cpu" or any(map(shutil.which, compilers))
    if not has_compiler:
        _log_once("no C++ compiler found on this machine, so steps are not compiled")
    return has_compiler


@cache
def _log_once(text: str) -> None:
    logger.info(text)


def stack_width(clients: int, steps_by_participant: np.ndarray | None) -> int:
    """Return the number of clients that are trained at once, see `fl.engine.compiled.turn_width`.

    Args:
        clients: Number of clients that are trained.
        steps_by_participant: See `fl.engine.state.RoundSchedule`.
    """
    if steps_by_participant is None:
        return clients
    return turn_width(clients, _count_programs(steps_by_participant))


def _count_programs(steps: np.ndarray) -> np.ndarray:
    """Return the number of programs for each number of steps."""
    return -(-steps // STEPS_PER_PROGRAM)


def train(
    pass_: Pass,
    server: Tree,
    server_is_stacked: bool,
    work: Tree,
    arrays: Arrays,
    schedule: Schedule,
    lr: Rate,
    width: int,
    clip_norm: float | None = None,
) -> tuple[Tree, Tensor]:
    """Make all steps of some clients.

    Args:
        pass_: The pass.
        server: The server's tree, or a stack with the tree of each client's run.
        server_is_stacked: Whether ``server`` is a stack.
        work: Work trees of the clients, stacked.
        arrays: The samples.
        schedule: The batches of the K clients.
        lr: Learning rate of all steps.
        width: Number of clients that are trained at once.
        clip_norm: See `fl.api.training.Training`.

    Returns:
        The work trees after the last step, stacked, and the summed loss of each client, [K].
    """

    def models(row: int) -> tuple[Tree, Tree]:
        return (trees.take(server, row) if server_is_stacked else server), trees.take(work, row)

    batches = Batches(pass_, schedule, arrays, models)
    advance = _program(pass_, server_is_stacked, arrays.device.type == "cpu", clip_norm)
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=arrays.device)
    # A tensor of one number: a scalar would be compiled as a constant, and traced again later.
    lr = torch.tensor([lr], dtype=torch.float64, device=arrays.device)
    order = assign_turns(_count_programs(schedule.steps), width)
    steps = STEPS_PER_PROGRAM * order.completed[:, None] + np.arange(STEPS_PER_PROGRAM)[:, None]
    active = torch.from_numpy(steps < schedule.steps[order.clients][:, None]).to(total.device)
    with torch.no_grad():
        for begin, end, clients in split_spells(order):
            rows = torch.from_numpy(clients).to(total.device)
            stack: Tree = trees.apply(Tensor.contiguous, trees.take(work, rows))
            servers = trees.take(server, rows) if server_is_stacked else server
            turn_batches = batches.iterate_turns(rows, steps[begin:end].reshape(-1, len(rows)))
            for time in range(begin, end):
                next_batches = list(islice(turn_batches, STEPS_PER_PROGRAM))
                stack, losses = advance(servers, stack, next_batches, list(active[time]), lr)
                total.index_add_(0, rows, losses)
            work = trees.replace_clients(work, rows, stack)
    return work, total


@cache
def _program(
    pass_: Pass, server_is_stacked: bool, in_one_file: bool, clip_norm: float | None
) -> Program:
    """Compile the program of a pass.

    Batches and masks of active clients are separate tensors for each step, so that all steps have
    the same code.
    """
    _log_once("compiling a program of training steps, unless an earlier job has stored it")
    dims = (0 if server_is_stacked else None, 0, 0)
    reference = pass_.reference and vmap(pass_.reference, in_dims=dims)

    def step(
        server: Tree, work: Tree, batch: Tree, active: Tensor, lr: Rate
    ) -> tuple[Tree, Tensor]:
        batch = add_reference_outputs(reference, server, work, batch)

        def total_loss(params: Tree) -> tuple[Tensor, tuple[Tensor, Tree]]:
            with_params = {**work, "params": params}
            losses, aux = vmap(pass_.loss, in_dims=dims)(server, with_params, batch)
            return losses.sum(), (losses, aux)

        grads, (_, (losses, aux)) = grad_and_value(total_loss, has_aux=True)(work["params"])
        new_work = trees.apply(
            lambda new, old: torch.where(trees.align(active, new), new, old),
            pass_.update(server, work, clipped(grads, clip_norm, stacked=True), aux, lr),
            work,
        )
        return new_work, torch.where(active, losses, 0)

    def several_steps(
        server: Tree, work: Tree, batches: list[Tree], active: list[Tensor], lr: Tensor
    ) -> tuple[Tree, Tensor]:
        total = torch.zeros_like(active[0], dtype=torch.float64)
        for batch, is_active in zip(batches, active, strict=True):
            work, losses = step(server, work, batch, is_active, lr[0])
            total = total + losses
        # With another memory layout than the input's, the next call would compile again.
        return trees.apply(torch.Tensor.contiguous, work), total

    return torch_internals.compile_function(several_steps, {"cpp_wrapper": in_one_file})


WIDTH_UNITS, MIN_WIDTH_SHARE = 8, 0.25
"""Widths are whole eighths of the number of clients, and at least a quarter of it. So few programs
serve many partitions, and rounds whose clients have about equal work take only a few turns.
"""


class Turns(NamedTuple):
    """The client in each row at each time, and its completed work.

    Attributes:
        clients: Clients, int64 [times, width]; the last client of a row stays in it.
        completed: Completed work of that client, int64 [times, width]; a client has finished when
            this equals its work.
    """

    clients: np.ndarray
    completed: np.ndarray


class Spell(NamedTuple):
    """A range of times, [begin, end), in which all rows keep their clients, int64 [width]."""

    begin: int
    end: int
    clients: np.ndarray


def split_spells(turns: Turns) -> list[Spell]:
    """Split turns into consecutive spells."""
    has_change = (turns.clients[1:] != turns.clients[:-1]).any(1)
    ends = [*(np.flatnonzero(has_change) + 1).tolist(), len(turns.clients)]
    return [Spell(begin, end, turns.clients[begin]) for begin, end in pairwise([0, *ends])]


def turn_width(clients: int, work: np.ndarray) -> int:
    """Return the number of rows for a number of clients.

    Args:
        clients: Number of clients that are trained.
        work: Work of all clients that may be trained, so that every round has the same width.
    """
    largest = work.max(initial=0)
    mean_share = work.mean() / largest if largest else 1.0
    width_share = max(MIN_WIDTH_SHARE, round(WIDTH_UNITS * mean_share) / WIDTH_UNITS)
    return int(np.ceil(clients * width_share))


def assign_turns(work: np.ndarray, width: int) -> Turns:
    """Assign clients to rows: those with most work first, each to the row that is free soonest.

    Args:
        work: Work of each client, in units of one time; for at least ``width`` clients.
        width: Number of rows.

    Returns:
        The client in each row at each time.
    """
    order = np.argsort(-work, kind="stable")
    rows = [[client] for client in order[:width]]
    ends = work[order[:width]]
    for client in order[width:]:
        row = int(ends.argmin())
        rows[row].append(client)
        ends[row] += work[client]
    times = int(ends.max(initial=1))
    clients, completed = np.zeros((2, times, width), np.int64)
    for row, queue in enumerate(rows):
        begin = 0
        for client in queue:
            clients[begin:, row] = client
            completed[begin:, row] = np.arange(times - begin).clip(max=work[client])
            begin += work[client]
    return Turns(clients, completed)
