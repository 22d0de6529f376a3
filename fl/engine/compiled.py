"""The stacked step, compiled: several steps of all clients in one program of `torch.compile`.

Shapes never change, so it is compiled once: the stack keeps its width, clients take turns in its
rows (`fl.engine.turns`), the number of steps is padded to whole chunks, and a client without a
step left keeps its tree unchanged. On a CPU a program is one C++ file: kernels that Python calls
one by one are compiled and called one by one.
"""

from __future__ import annotations

import logging
import os
import shutil
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fl.api import trees
from fl.api.method import Pass
from fl.api.optimizers import clipped
from fl.api.trees import Rate, Tree
from fl.engine import turns
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule
from fl.engine.loader import Batches, ask
from fl.pytorch import torch_internals

logger = logging.getLogger(__name__)

CHUNK = 4
"""Steps in one program: calling it costs as much as a step of a small model, and compiling it takes
longer with each of them.
"""


def available(device: torch.device) -> bool:
    """Whether `torch.compile` works here: on a CPU it needs a C++ compiler. Logs a failure once."""
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
    there = device.type != "cpu" or any(map(shutil.which, compilers))
    if not there:
        _say("no C++ compiler here, so the stacked step is not compiled")
    return there


@cache
def _say(text: str) -> None:
    logger.info(text)


def width(clients: int, usual: np.ndarray | None) -> int:
    """How many clients are trained at once, see `fl.engine.turns.width`.

    Args:
        usual: Steps of all clients from whom they come, `fl.engine.state.RoundPlan`.
    """
    return clients if usual is None else turns.width(clients, _chunks(usual))


def _chunks(steps: np.ndarray) -> np.ndarray:
    return -(-steps // CHUNK)


def train(
    pass_: Pass,
    server: Tree,
    several: bool,
    work: Tree,
    arrays: Arrays,
    schedule: Schedule,
    lr: Rate,
    width: int,
    clip_norm: float | None = None,
) -> tuple[Tree, Tensor]:
    """All steps of some clients.

    Args:
        several: Whether ``server`` is a stack too, see `fl.engine.backends.Cohort`.
        width: How many of them are trained at once.
        clip_norm: See `fl.engine.state.RoundPlan`.

    Returns:
        Their work trees after the last step, stacked, and each one's summed loss, [K].
    """

    def models(row: int) -> tuple[Tree, Tree]:
        return (trees.take(server, row) if several else server), trees.take(work, row)

    batches = Batches(pass_, schedule, arrays, models)
    advance = _program(pass_, several, arrays.device.type == "cpu", clip_norm)
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=arrays.device)
    # Not a scalar, which the compiler would try as a constant first, and then trace anew.
    lr = torch.tensor([lr], dtype=torch.float64, device=arrays.device)
    order = turns.turns(_chunks(schedule.steps), width)
    steps = CHUNK * order.done[:, None] + np.arange(CHUNK)[:, None]
    active = torch.from_numpy(steps < schedule.steps[order.clients][:, None]).to(total.device)
    with torch.no_grad():
        for begin, end, clients in turns.spells(order):
            rows = torch.from_numpy(clients).to(total.device)
            at_work = trees.apply(Tensor.contiguous, trees.take(work, rows))
            sent = trees.take(server, rows) if several else server
            given = batches.apart(rows, steps[begin:end].reshape(-1, len(rows)))
            for time in range(begin, end):
                now = list(islice(given, CHUNK)), list(active[time])
                at_work, losses = advance(sent, at_work, *now, lr)
                total.index_add_(0, rows, losses)
            work = trees.replace_clients(work, rows, at_work)
    return dict(work), total


@cache
def _program(pass_: Pass, several: bool, whole: bool, clip_norm: float | None) -> Any:
    """The compiled chunk of a pass: (server, work, batches, active, lr) -> (work, losses).

    Batches and who is active come step by step, each in memory of its own: so the code of a step is
    that of the next one.

    Args:
        whole: Whether a program is one file.
    """
    _say("compiling a program of steps unless one is kept; until then nothing is trained")
    dims = (0 if several else None, 0, 0)
    reference = pass_.reference and vmap(pass_.reference, in_dims=dims)

    def step(
        server: Tree, work: Tree, batch: Tree, active: Tensor, lr: Rate
    ) -> tuple[Tree, Tensor]:
        batch = ask(reference, server, work, batch)

        def total(params: Tree) -> tuple[Tensor, Any]:
            tried = {**work, "params": params}
            losses, aux = vmap(pass_.loss, in_dims=dims)(server, tried, batch)
            return losses.sum(), (losses, aux)

        grads, (_, (losses, aux)) = grad_and_value(total, has_aux=True)(work["params"])
        after = trees.apply(
            lambda new, old: torch.where(trees.align(active, new), new, old),
            pass_.update(server, work, clipped(grads, clip_norm, stacked=True), aux, lr),
            work,
        )
        return after, torch.where(active, losses, 0)

    def chunk(
        server: Tree, work: Tree, batches: list[Tree], active: list[Tensor], lr: Tensor
    ) -> tuple[Tree, Tensor]:
        total = torch.zeros_like(active[0], dtype=torch.float64)
        for batch, now in zip(batches, active, strict=True):
            work, losses = step(server, work, batch, now, lr[0])
            total = total + losses
        # Else what a chunk gives lies otherwise than what it was given, and the next is compiled
        # once more for that.
        return trees.apply(torch.Tensor.contiguous, work), total

    return torch_internals.compile_function(chunk, {"cpp_wrapper": whole})
