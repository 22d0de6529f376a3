"""The ways to train a cohort of clients: one after another, or all at once.

``loop`` trains one client after another; ``stacked`` trains them at once, with `torch.func.vmap`
over stacked weights and buffers; ``compiled`` is ``stacked`` as one program of several steps, see
`fl.engine.compiled`; ``debug`` is ``loop`` that names client, round and step in every error and
stops at the first loss that is not finite. They agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Pass, Refresh, Sweep
from fl.api.protocols import is_spending
from fl.api.term import Batch
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.engine import compiled
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule
from fl.engine.loader import Batches, ask
from fl.engine.midway import STEP, UNWATCHED, Midway, listed, moved, unlisted


@dataclass(frozen=True)
class Cohort:
    """Clients that are trained together: those of a round, some of them, or those of several runs.

    clients: their trees, stacked; ids: their numbers, [m]; server: its tree, or where ``several``
    runs are trained together a stack with the server's tree of each client's run; schedule: the
    clients' batches; usual: see `fl.engine.state.Plan`.
    """

    clients: Tree
    ids: Tensor
    server: Tree
    several: bool
    schedule: Schedule
    arrays: Arrays
    round: int
    lr: float
    usual: np.ndarray | None = None

    @property
    def dims(self) -> tuple[int | None, int]:
        """How `fl.api.trees.vmap` maps the server's tree and a client's."""
        return (0 if self.several else None), 0


class Trained(NamedTuple):
    """What clients keep and what they upload, stacked, and their mean training losses, [m]."""

    kept: Tree
    uploads: Tree
    losses: Tensor


Watch = Callable[[int, int, Tensor | None], None]


def loop(
    part: Pass, cohort: Cohort, midway: Midway = UNWATCHED, watch: Watch | None = None
) -> Trained:
    """One client after another. ``watch(row, step, loss)`` is told before and after each loss."""
    found = unlisted(midway.begun.get("done", {}), cohort.arrays.device)
    done = [Trained(**one) for one in found]
    for row in range(len(done), len(cohort.schedule.steps)):
        own = midway.within("client", row, partial(_done, done))
        done.append(_alone(part, cohort, row, own, watch))
    kept, uploads, losses = zip(*done, strict=True)
    return Trained(trees.stack(kept), trees.stack(uploads), torch.stack(losses))


def _done(clients: list[Trained]) -> Tree:
    return {"done": listed(one._asdict() for one in clients)}


def _alone(part: Pass, cohort: Cohort, row: int, midway: Midway, watch: Watch | None) -> Trained:
    """The pass of one client of a cohort."""
    steps, device = int(cohort.schedule.steps[row]), cohort.arrays.device
    server = trees.take(cohort.server, row) if cohort.several else cohort.server
    client = trees.take(cohort.clients, row)
    work = part.begin(server, client)
    schedule = cohort.schedule.take(np.array([row]))
    batches = Batches(part, schedule, cohort.arrays, [(server, work)].__getitem__)
    total = torch.zeros((), dtype=torch.float64, device=device)
    if midway.begun:
        work, total = moved(midway.begun["work"], device), midway.begun["total"].to(device)
    for step in range(midway.first(STEP), steps):
        work = _differentiable(work)
        if watch:
            watch(row, step, None)
        batch = ask(part.reference, server, work, batches.at(0, step))
        loss, aux = part.loss(server, work, batch)
        if watch:
            watch(row, step, loss)
        work = _moved(part, server, work, _gradients(work, loss), aux, cohort.lr)
        total = total + loss.detach()
        for number, refresh in _due(part, step):
            extra = batches.extra(number, refresh, 0, step)
            with torch.no_grad():
                seen = _seen(part, refresh, server, work, extra)
                work = refresh.adapt(work, seen)
        if midway.due():
            midway.keep({STEP: torch.tensor(step + 1), "work": work, "total": total})
    return Trained(*part.end(server, client, work), total / max(1, steps))


def stacked(part: Pass, cohort: Cohort, midway: Midway = UNWATCHED) -> Trained:
    """All clients at once; who has finished leaves the stack."""
    # Those with most steps come first, so that they leave from its end.
    order = np.argsort(-cohort.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(cohort.arrays.device)
    schedule = cohort.schedule.take(order)
    # Named nowhere here, so that trees go as soon as steps have replaced them.
    work, totals = _stepped(part, cohort, schedule, _begun(part, cohort, rows), midway)
    back = torch.argsort(rows)
    kept, uploads = trees.vmap(part.end, (*cohort.dims, 0))(
        cohort.server, cohort.clients, trees.take(work, back)
    )
    means = totals / torch.from_numpy(schedule.steps.clip(min=1)).to(totals.device)
    return Trained(kept, uploads, means[back])


@dataclass(frozen=True)
class _Stack:
    """The clients that have steps left: what `Cohort.server` is for them, their work trees stacked,
    and how many they are.
    """

    server: Tree
    several: bool
    work: Tree
    active: int

    def models(self, row: int) -> tuple[Tree, Tree]:
        """The server's tree and the work tree of one of them."""
        server = trees.take(self.server, row) if self.several else self.server
        return server, trees.take(self.work, row)

    def laid_out(self, grads: Tree) -> _Stack:
        """With every leaf of a weight's name and shape laid out in memory as its gradient is: a
        step that reads one across the other takes several times as long.
        """
        with torch.no_grad():
            server = grads if self.several else trees.take(grads, 0)
            return replace(
                self,
                server=trees.laid_out(self.server, server),
                work=trees.laid_out(self.work, grads),
            )

    def first(self, count: int) -> _Stack:
        """Without those after the first ``count``."""
        kept = slice(0, count)
        server = trees.take(self.server, kept) if self.several else self.server
        return _Stack(server, self.several, trees.take(self.work, kept), count)


def _begun(part: Pass, cohort: Cohort, rows: Tensor) -> _Stack:
    """All clients of a cohort before their first step, in the order of ``rows``."""
    server = trees.take(cohort.server, rows) if cohort.several else cohort.server
    work = trees.vmap(part.begin, cohort.dims)(server, trees.take(cohort.clients, rows))
    return _Stack(server, cohort.several, work, len(rows))


def _stepped(
    part: Pass, cohort: Cohort, schedule: Schedule, stack: _Stack, midway: Midway
) -> tuple[dict[str, Any], Tensor]:
    """All clients' work trees after their steps, stacked, and their summed losses, [m].

    schedule: of the clients in the stack's order, those with most steps first.
    """
    batches = Batches(part, schedule, cohort.arrays, stack.models)
    objective = trees.vmap(part.loss, (*cohort.dims, 0))
    reference = part.reference and trees.vmap(part.reference, (*cohort.dims, 0))

    def tried(stack: _Stack, batch: Batch) -> tuple[_Stack, Tensor, Tree, Tree]:
        stack = replace(stack, work=_differentiable(stack.work))
        batch = ask(reference, stack.server, stack.work, batch)
        losses, aux = objective(stack.server, stack.work, batch)
        return stack, losses, aux, _gradients(stack.work, losses)

    finished: list[dict[str, Any]] = []
    totals = torch.zeros(stack.active, dtype=torch.float64, device=cohort.arrays.device)
    if midway.begun:
        stack, finished, totals = _again(midway.begun, stack)
    first = midway.first(STEP)
    for step, (still, batch) in enumerate(batches.each(first), first):
        if still < stack.active:
            finished.append(trees.take(stack.work, slice(still, stack.active)))
            stack = stack.first(still)
        stack, losses, aux, grads = tried(stack, batch)
        if step == first:
            stack = stack.laid_out(grads)
            if step:  # As one that went on without a break, to the bit.
                stack, losses, aux, grads = tried(stack, batch)
        work = _moved(part, stack.server, stack.work, grads, aux, cohort.lr)
        stack = _refreshed(part, replace(stack, work=work), batches, step)
        totals[:still].add_(losses.detach())
        if midway.due():
            midway.keep(
                {
                    STEP: torch.tensor(step + 1),
                    "work": stack.work,
                    "finished": listed(finished),
                    "totals": totals,
                }
            )
    return trees.concatenate([stack.work, *reversed(finished)]), totals


def _again(kept: Tree, stack: _Stack) -> tuple[_Stack, list[dict[str, Any]], Tensor]:
    """The stack as it was kept after a step, who had finished before, and the summed losses."""
    device = trees.leaves(stack.work)[0].device
    work = moved(kept["work"], device)
    stack = replace(stack.first(len(trees.leaves(work)[0])), work=work)
    return stack, unlisted(kept["finished"], device), kept["totals"].to(device)


def _refreshed(part: Pass, stack: _Stack, batches: Batches, step: int) -> _Stack:
    """The stack with what is due after a step."""
    for number, refresh in _due(part, step):
        with torch.no_grad():
            # One by one, as each looks at many batches at once.
            seen = [
                _seen(part, refresh, *stack.models(row), batches.extra(number, refresh, row, step))
                for row in range(stack.active)
            ]
            stack = replace(stack, work=refresh.adapt(stack.work, trees.stack(seen)))
    return stack


def debug(part: Pass, cohort: Cohort, midway: Midway = UNWATCHED) -> Trained:
    """`loop` with every error placed."""
    place = "before the first step"

    def watch(row: int, step: int, loss: Tensor | None) -> None:
        nonlocal place
        place = f"client {int(cohort.ids[row])}, round {cohort.round}, step {step}"
        if loss is not None and not torch.isfinite(loss):
            raise FedloomError(f"{place}: the loss is {loss.item()}")

    try:
        return loop(part, cohort, midway, watch)
    except FedloomError:
        raise
    except Exception as error:
        raise FedloomError(f"{place}: {type(error).__name__}: {error}") from error


def compiled_stack(part: Pass, cohort: Cohort, midway: Midway = UNWATCHED) -> Trained:
    """`stacked` as a compiled program, where the pass is only steps."""
    if part.refreshes or not compiled.available(cohort.arrays.device):
        return stacked(part, cohort, midway)
    schedule, server = cohort.schedule, cohort.server
    work = trees.vmap(part.begin, cohort.dims)(server, cohort.clients)
    width = compiled.width(len(schedule.steps), cohort.usual)
    work, totals = compiled.train(
        part, server, cohort.several, work, cohort.arrays, schedule, cohort.lr, width, midway
    )
    kept, uploads = trees.vmap(part.end, (*cohort.dims, 0))(server, cohort.clients, work)
    taken = torch.from_numpy(schedule.steps.clip(min=1)).to(totals.device)
    return Trained(kept, uploads, totals / taken)


def of_passes(backend: str, passes: Iterable[Pass | Sweep], device: torch.device) -> str:
    """The backend that trains these passes: `compiled` is `stacked` where none of them can be
    compiled, and is called so.
    """
    steps = [one for one in passes if isinstance(one, Pass) and not one.refreshes]
    there = bool(steps) and compiled.available(device)
    return "stacked" if backend == "compiled" and not there else backend


Backend = Callable[..., Trained]
"""Of a pass, a cohort, and if it is watched, a `Midway`."""

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


def _seen(part: Pass, refresh: Refresh, server: Tree, work: Tree, batch: Batch) -> Tree:
    return refresh.look(server, work, ask(part.reference, server, work, batch))


def _differentiable(work: Tree) -> Tree:
    params = trees.apply(lambda p: p.detach().requires_grad_(), work["params"])
    return {**work, "params": params}


def _gradients(work: Tree, losses: Tensor) -> Tree:
    """Of the sum of the losses, by the tree's ``params``."""
    params = work["params"]
    # Given the gradient of the losses instead, PyTorch loads SymPy, for half a second.
    found = torch.autograd.grad(losses.sum(), trees.leaves(params))
    return trees.unflatten(params, found)


def _moved(part: Pass, server: Tree, work: Tree, grads: Tree, aux: Tree, lr: float) -> Tree:
    if is_spending(part.update):
        grads = trees.Scratch.of(grads)
    with torch.no_grad():
        return part.update(server, work, grads, trees.apply(Tensor.detach, aux), lr)
