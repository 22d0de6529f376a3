"""The stacked step, compiled: several steps of all clients in one program of `torch.compile`.

Shapes never change, so it is compiled once: the stack keeps its width, the number of steps is
padded to whole chunks, and a client without a step left keeps its tree unchanged. On a CPU a
program is one C++ file: kernels that Python calls one by one are compiled and called one by one.
"""

from __future__ import annotations

import logging
import os
import shutil
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap

from fl import trees
from fl.data.batches import Arrays, Schedule
from fl.method import Pass
from fl.pytorch import private
from fl.simulation.loader import Batches, ask
from fl.simulation.midway import STEP, UNWATCHED, Midway, moved
from fl.trees import Rate, Tree

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


def train(
    part: Pass,
    server: Tree,
    several: bool,
    work: Tree,
    arrays: Arrays,
    schedule: Schedule,
    lr: Rate,
    midway: Midway = UNWATCHED,
) -> tuple[dict[str, Any], Tensor]:
    """All steps of a stack.

    Args:
        several: Whether ``server`` is a stack too, see `fl.simulation.backends.Cohort`.

    Returns:
        The work tree after the last step, and each client's summed loss, [K].
    """
    schedule = _padded(schedule)
    longest = schedule.index.shape[1]
    active = torch.from_numpy(np.arange(longest)[:, None] < schedule.steps).to(arrays.device)
    work = trees.apply(torch.Tensor.contiguous, work)

    def models(row: int) -> tuple[Tree, Tree]:
        return (trees.take(server, row) if several else server), trees.take(work, row)

    batches = Batches(part, schedule, arrays, models)
    advance = _program(part, several, arrays.device.type == "cpu")
    total = torch.zeros(len(schedule.steps), dtype=torch.float64, device=arrays.device)
    # Not a scalar, which the compiler would try as a constant first, and then trace anew.
    lr = torch.tensor([lr], dtype=torch.float64, device=arrays.device)
    if midway.begun:
        work, total = moved(midway.begun["work"], total.device), midway.begun["totals"].to(total)
    with torch.no_grad():
        for begin in range(midway.first(STEP), longest, CHUNK):
            now = slice(begin, begin + CHUNK)
            work, losses = advance(server, work, batches.apart(now), list(active[now]), lr)
            total += losses
            if midway.due():
                done = torch.tensor(begin + CHUNK)
                midway.keep({STEP: done, "work": work, "totals": total})
    return dict(work), total


def _padded(schedule: Schedule) -> Schedule:
    """The schedule with steps of zeros at the end, up to whole chunks."""
    longest = int(schedule.steps.max())

    def whole(array: np.ndarray) -> np.ndarray:
        return np.pad(array[:, :longest], [(0, 0), (0, -longest % CHUNK), (0, 0)])

    return replace(schedule, index=whole(schedule.index), weight=whole(schedule.weight))


@cache
def _program(part: Pass, several: bool, whole: bool) -> Any:
    """The compiled chunk of a pass: (server, work, batches, active, lr) -> (work, losses).

    Batches and who is active come step by step, each in memory of its own: so the code of a step is
    that of the next one.

    Args:
        whole: Whether a program is one file.
    """
    dims = (0 if several else None, 0, 0)
    reference = part.reference and vmap(part.reference, in_dims=dims)

    def step(
        server: Tree, work: Tree, batch: Tree, active: Tensor, lr: Rate
    ) -> tuple[dict[str, Any], Tensor]:
        batch = ask(reference, server, work, batch)

        def total(params: Tree) -> tuple[Tensor, Any]:
            tried = {**work, "params": params}
            losses, aux = vmap(part.loss, in_dims=dims)(server, tried, batch)
            return losses.sum(), (losses, aux)

        grads, (_, (losses, aux)) = grad_and_value(total, has_aux=True)(work["params"])
        after = trees.apply(
            lambda new, old: torch.where(trees.align(active, new), new, old),
            part.update(server, work, grads, aux, lr),
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

    return private.compiled(chunk, {"cpp_wrapper": whole})
