"""The ways to train a cohort of clients: one after another, or all at once.

``loop`` trains one client after another; ``stacked`` trains them at once, with `torch.func.vmap`
over stacked weights and buffers; ``compiled`` is ``stacked`` as one program of several steps, see
`fl.simulation.compiled`; ``debug`` is ``loop`` that names client, round and step in every error and
stops at the first loss that is not finite. They agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fl import trees
from fl.data.batches import Arrays, Schedule
from fl.errors import FedloomError
from fl.method import Pass, Refresh
from fl.simulation import compiled
from fl.simulation.loader import Batches, ask
from fl.term import Batch
from fl.trees import Tree


@dataclass(frozen=True)
class Cohort:
    """Clients that are trained together: those of a round, some of them, or those of several runs.

    clients: their trees, stacked; ids: their numbers, [m]; server: its tree, or where ``several``
    runs are trained together a stack with the server's tree of each client's run; schedule: the
    clients' batches.
    """

    clients: dict[str, Any]
    ids: Tensor
    server: Tree
    several: bool
    schedule: Schedule
    arrays: Arrays
    round: int
    lr: float

    @property
    def dims(self) -> tuple[int | None, int]:
        """How `fl.trees.vmap` maps the server's tree and a client's."""
        return (0 if self.several else None), 0


Trained = tuple[dict[str, Any], dict[str, Any], Tensor]
"""What clients keep and what they upload, stacked, and their mean training losses, [m]."""

Watch = Callable[[int, int, Tensor | None], None]


def loop(part: Pass, cohort: Cohort, watch: Watch | None = None) -> Trained:
    """One client after another. ``watch(row, step, loss)`` is told before and after each loss."""
    done, schedule = [], cohort.schedule
    for row, steps in enumerate(schedule.steps):
        server = trees.take(cohort.server, row) if cohort.several else cohort.server
        client = trees.take(cohort.clients, row)
        work = part.begin(server, client)
        batches = Batches(
            part, schedule.take(np.array([row])), cohort.arrays, [(server, work)].__getitem__
        )
        total = torch.zeros((), dtype=torch.float64, device=cohort.arrays.device)
        for step in range(int(steps)):
            work = _differentiable(work)
            if watch:
                watch(row, step, None)
            batch = ask(part.reference, server, work, batches.at(0, step))
            loss, aux = part.loss(server, work, batch)
            if watch:
                watch(row, step, loss)
            work = _updated(part, server, work, loss, aux, cohort.lr)
            total = total + loss.detach()
            for number, refresh in _due(part, step):
                extra = batches.extra(number, refresh, 0, step)
                with torch.no_grad():
                    seen = _seen(part, refresh, server, work, extra)
                    work = refresh.adapt(work, seen)
        done.append((*part.end(server, client, work), total / max(1, int(steps))))
    kept, uploads, losses = zip(*done, strict=True)
    return trees.stack(kept), trees.stack(uploads), torch.stack(losses)


def stacked(part: Pass, cohort: Cohort) -> Trained:
    """All clients at once; who has finished leaves the stack."""
    # Those with most steps come first, so that they leave from its end.
    order = np.argsort(-cohort.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(cohort.arrays.device)
    steps = cohort.schedule.steps[order]
    server = trees.take(cohort.server, rows) if cohort.several else cohort.server
    work = trees.vmap(part.begin, cohort.dims)(server, trees.take(cohort.clients, rows))

    def models(row: int) -> tuple[Tree, Tree]:
        own = trees.take(server, row) if cohort.several else server
        return own, trees.take(work, row)

    batches = Batches(part, cohort.schedule.take(order), cohort.arrays, models)
    objective = trees.vmap(part.loss, (*cohort.dims, 0))
    reference = part.reference and trees.vmap(part.reference, (*cohort.dims, 0))
    finished: list[dict[str, Any]] = []
    totals = torch.zeros(len(order), dtype=torch.float64, device=cohort.arrays.device)
    active = len(order)
    for step in range(int(steps[0])):
        still = int((steps > step).sum())
        if still < active:
            finished.append(trees.take(work, slice(still, active)))
            work, active = trees.take(work, slice(0, still)), still
            server = trees.take(server, slice(0, still)) if cohort.several else server
        work = _differentiable(work)
        batch = ask(reference, server, work, batches.at(slice(0, active), step))
        losses, aux = objective(server, work, batch)
        work = _updated(part, server, work, losses.sum(), aux, cohort.lr)
        totals[:active] += losses.detach()
        for number, refresh in _due(part, step):
            with torch.no_grad():
                # One by one, as each looks at many batches at once.
                seen = [
                    _seen(part, refresh, *models(row), batches.extra(number, refresh, row, step))
                    for row in range(active)
                ]
                work = refresh.adapt(work, trees.stack(seen))
    work = trees.concatenate([work, *reversed(finished)])
    back = torch.argsort(rows)
    kept, uploads = trees.vmap(part.end, (*cohort.dims, 0))(
        cohort.server, cohort.clients, trees.take(work, back)
    )
    means = totals / torch.from_numpy(steps.clip(min=1)).to(totals.device)
    return kept, uploads, means[back]


def debug(part: Pass, cohort: Cohort) -> Trained:
    """`loop` with every error placed."""
    place = "before the first step"

    def watch(row: int, step: int, loss: Tensor | None) -> None:
        nonlocal place
        place = f"client {int(cohort.ids[row])}, round {cohort.round}, step {step}"
        if loss is not None and not torch.isfinite(loss):
            raise FedloomError(f"{place}: the loss is {loss.item()}")

    try:
        return loop(part, cohort, watch)
    except FedloomError:
        raise
    except Exception as error:
        raise FedloomError(f"{place}: {type(error).__name__}: {error}") from error


def compiled_stack(part: Pass, cohort: Cohort) -> Trained:
    """`stacked` as a compiled program, where the pass is only steps."""
    if part.refreshes or not compiled.available(cohort.arrays.device):
        return stacked(part, cohort)
    schedule, server = cohort.schedule, cohort.server
    work = trees.vmap(part.begin, cohort.dims)(server, cohort.clients)
    work, totals = compiled.train(
        part, server, cohort.several, work, cohort.arrays, schedule, cohort.lr
    )
    kept, uploads = trees.vmap(part.end, (*cohort.dims, 0))(server, cohort.clients, work)
    return kept, uploads, totals / torch.from_numpy(schedule.steps.clip(min=1)).to(totals.device)


Backend = Callable[[Pass, Cohort], Trained]

BACKENDS: dict[str, Backend] = {
    "loop": loop,
    "stacked": stacked,
    "compiled": compiled_stack,
    "debug": debug,
}

TOGETHER = ("stacked", "compiled")
"""Backends that gain from training the clients of several runs in one stack."""


def _due(part: Pass, step: int) -> list[tuple[int, Refresh]]:
    return [(i, refresh) for i, refresh in enumerate(part.refreshes) if refresh.due(step + 1)]


def _seen(part: Pass, refresh: Refresh, server: Tree, work: Tree, batch: Batch) -> dict[str, Any]:
    return refresh.look(server, work, ask(part.reference, server, work, batch))


def _differentiable(work: Tree) -> dict[str, Any]:
    params = trees.apply(lambda p: p.detach().requires_grad_(), work["params"])
    return {**work, "params": params}


def _updated(
    part: Pass, server: Tree, work: Tree, loss: Tensor, aux: Tree, lr: float
) -> dict[str, Any]:
    params = work["params"]
    grads = trees.unflatten(params, torch.autograd.grad(loss, trees.leaves(params)))
    with torch.no_grad():
        return part.update(server, work, grads, trees.apply(Tensor.detach, aux), lr)
