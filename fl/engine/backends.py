"""The ways to train a cohort of clients: one after another, or all at once.

``loop`` trains one client after another; ``stacked`` trains them at once, with `torch.func.vmap`
over stacked weights and buffers; ``compiled`` is ``stacked`` as one program of several steps, see
`fl.engine.compiled`; ``debug`` is ``loop`` that names client, round and step in every error and
stops at the first loss that is not finite. They agree to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Pass, Refresh, Sweep
from fl.api.optimizers import clipped
from fl.api.protocols import is_consuming_gradients
from fl.api.term import Batch
from fl.api.training import Training, learning_rate
from fl.api.trees import Rate, Tree
from fl.base.errors import FedloomError
from fl.engine import compiled
from fl.engine.arrays import Arrays
from fl.engine.batches import Schedule
from fl.engine.loader import Batches, ask


@dataclass(frozen=True)
class Cohort:
    """Clients that are trained together: those of a round, some of them, or those of several runs.

    clients: their trees, stacked; ids: their numbers, [m]; server: its tree, or where ``several``
    runs are trained together a stack with the server's tree of each client's run; schedule: the
    clients' batches; usual: see `fl.engine.state.RoundPlan`.
    """

    clients: Tree
    ids: Tensor
    server: Tree
    several: bool
    schedule: Schedule
    arrays: Arrays
    round: int
    training: Training
    usual: np.ndarray | None = None

    @property
    def dims(self) -> tuple[int | None, int]:
        """How `fl.api.trees.vmap` maps the server's tree and a client's."""
        return (0 if self.several else None), 0

    def lr(self, step: int, steps: int) -> float:
        """The rate of a client's step, of so many in this pass."""
        return learning_rate(self.training, self.round, step, steps)


class Trained(NamedTuple):
    """What clients keep and what they upload, stacked, and their mean training losses, [m]."""

    kept: Tree
    uploads: Tree
    losses: Tensor


Watch = Callable[[int, int, Tensor | None], None]


def loop(pass_: Pass, cohort: Cohort, watch: Watch | None = None) -> Trained:
    """One client after another. ``watch(row, step, loss)`` is told before and after each loss."""
    done = [_alone(pass_, cohort, row, watch) for row in range(len(cohort.schedule.steps))]
    kept, uploads, losses = zip(*done, strict=True)
    return Trained(trees.stack(kept), trees.stack(uploads), torch.stack(losses))


def _alone(pass_: Pass, cohort: Cohort, row: int, watch: Watch | None) -> Trained:
    """The pass of one client of a cohort."""
    steps = int(cohort.schedule.steps[row])
    server = trees.take(cohort.server, row) if cohort.several else cohort.server
    client = trees.take(cohort.clients, row)
    work = pass_.begin(server, client)
    schedule = cohort.schedule.take(np.array([row]))
    batches = Batches(pass_, schedule, cohort.arrays, [(server, work)].__getitem__)
    total = torch.zeros((), dtype=torch.float64, device=cohort.arrays.device)
    for step in range(steps):
        work = _differentiable(work)
        if watch:
            watch(row, step, None)
        batch = ask(pass_.reference, server, work, batches.at(0, step))
        loss, aux = pass_.loss(server, work, batch)
        if watch:
            watch(row, step, loss)
        grads = _gradients(work, loss, cohort.training.clip_norm)
        work = _updated(pass_, server, work, grads, aux, cohort.lr(step, steps))
        total = total + loss.detach()
        for number, refresh in _due(pass_, step):
            extra = batches.extra(number, refresh, 0, step)
            with torch.no_grad():
                seen = _seen(pass_, refresh, server, work, extra)
                work = refresh.adapt(work, seen)
    return Trained(*pass_.end(server, client, work), total / max(1, steps))


def stacked(pass_: Pass, cohort: Cohort) -> Trained:
    """All clients at once; who has finished leaves the stack."""
    # Those with most steps come first, so that they leave from its end.
    order = np.argsort(-cohort.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(cohort.arrays.device)
    schedule = cohort.schedule.take(order)
    # No other name than this holds trees, so that they go as soon as a step has replaced them.
    active = _Active.of(pass_, cohort, rows)
    batches = Batches(pass_, schedule, cohort.arrays, active.models)
    step = _stacked_step(pass_, replace(cohort, schedule=schedule))
    finished: list[Tree] = []
    totals = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for number, (still, batch) in enumerate(batches.each()):
        if still < active.count:
            finished.append(trees.take(active.work, slice(still, active.count)))
            active = active.first(still)
        active, losses = step(active, batch, number)
        active = _refreshed(pass_, active, batches, number)
        totals[:still].add_(losses)
    work = trees.concatenate([active.work, *reversed(finished)])
    back = torch.argsort(rows)
    kept, uploads = trees.vmap(pass_.end, (*cohort.dims, 0))(
        cohort.server, cohort.clients, trees.take(work, back)
    )
    means = totals / torch.from_numpy(schedule.steps.clip(min=1)).to(totals.device)
    return Trained(kept, uploads, means[back])


@dataclass(frozen=True)
class _Active:
    """The clients of a stack that have steps left: what `Cohort.server` is for them, their work
    trees stacked, and how many they are.
    """

    server: Tree
    several: bool
    work: Tree
    count: int

    @classmethod
    def of(cls, pass_: Pass, cohort: Cohort, rows: Tensor) -> _Active:
        """All clients of a cohort before their first step, in the order of ``rows``."""
        server = trees.take(cohort.server, rows) if cohort.several else cohort.server
        work = trees.vmap(pass_.begin, cohort.dims)(server, trees.take(cohort.clients, rows))
        return cls(server, cohort.several, work, len(rows))

    def models(self, row: int) -> tuple[Tree, Tree]:
        """The server's tree and the work tree of one of them."""
        server = trees.take(self.server, row) if self.several else self.server
        return server, trees.take(self.work, row)

    def laid_out(self, grads: Tree) -> _Active:
        """With every leaf of a weight's name and shape laid out in memory as its gradient is: a
        step that reads one across the other takes several times as long.
        """
        with torch.no_grad():
            server = grads if self.several else trees.take(grads, 0)
            return replace(
                self,
                server=trees.match_layout(self.server, server),
                work=trees.match_layout(self.work, grads),
            )

    def first(self, count: int) -> _Active:
        """Without those after the first ``count``."""
        kept = slice(0, count)
        server = trees.take(self.server, kept) if self.several else self.server
        return _Active(server, self.several, trees.take(self.work, kept), count)


def _stacked_step(
    pass_: Pass, cohort: Cohort
) -> Callable[[_Active, Batch, int], tuple[_Active, Tensor]]:
    """One step of a pass for all that are active: what they are after it, and their losses.

    cohort: with its schedule in the stack's order.
    """
    objective = trees.vmap(pass_.loss, (*cohort.dims, 0))
    reference = pass_.reference and trees.vmap(pass_.reference, (*cohort.dims, 0))
    rates = _rates(cohort)

    def step(active: _Active, batch: Batch, number: int) -> tuple[_Active, Tensor]:
        active = replace(active, work=_differentiable(active.work))
        batch = ask(reference, active.server, active.work, batch)
        losses, aux = objective(active.server, active.work, batch)
        grads = _gradients(active.work, losses, cohort.training.clip_norm)
        if not number:
            active = active.laid_out(grads)
        lr = rates[number, : active.count] if isinstance(rates, Tensor) else rates
        work = _updated(pass_, active.server, active.work, grads, aux, lr)
        return replace(active, work=work), losses.detach()

    return step


def _rates(cohort: Cohort) -> Rate:
    """Of all steps of all clients, [steps, m]; one number where they have the same."""
    if cohort.training.schedule_by == "rounds":
        return cohort.lr(0, 1)
    taken = cohort.schedule.steps.tolist()
    by_steps = {
        steps: [cohort.lr(step, max(1, steps)) for step in range(max(taken))]
        for steps in set(taken)
    }
    table = torch.tensor([by_steps[steps] for steps in taken], dtype=cohort.arrays.dtype)
    # At once: each copy waits for what the device has to do.
    return table.T.to(cohort.arrays.device)


def _refreshed(pass_: Pass, active: _Active, batches: Batches, step: int) -> _Active:
    """The clients with what is due after a step."""
    for number, refresh in _due(pass_, step):
        with torch.no_grad():
            # One by one, as each looks at many batches at once.
            seen = [
                _seen(
                    pass_, refresh, *active.models(row), batches.extra(number, refresh, row, step)
                )
                for row in range(active.count)
            ]
            active = replace(active, work=refresh.adapt(active.work, trees.stack(seen)))
    return active


def debug(pass_: Pass, cohort: Cohort) -> Trained:
    """`loop` with every error placed."""
    place = "before the first step"

    def watch(row: int, step: int, loss: Tensor | None) -> None:
        nonlocal place
        place = f"client {int(cohort.ids[row])}, round {cohort.round}, step {step}"
        if loss is not None and not torch.isfinite(loss):
            raise FedloomError(f"{place}: the loss is {loss.item()}")

    try:
        return loop(pass_, cohort, watch)
    except FedloomError:
        raise
    except Exception as error:
        raise FedloomError(f"{place}: {type(error).__name__}: {error}") from error


def compiled_stack(pass_: Pass, cohort: Cohort) -> Trained:
    """`stacked` as a compiled program, where the pass is only steps."""
    there = of_passes("compiled", [pass_], cohort.training, cohort.arrays.device)
    if there != "compiled":
        return stacked(pass_, cohort)
    schedule, server = cohort.schedule, cohort.server
    work = trees.vmap(pass_.begin, cohort.dims)(server, cohort.clients)
    width = compiled.width(len(schedule.steps), cohort.usual)
    work, totals = compiled.train(
        pass_,
        server,
        cohort.several,
        work,
        cohort.arrays,
        schedule,
        cohort.lr(0, 1),
        width,
        cohort.training.clip_norm,
    )
    kept, uploads = trees.vmap(pass_.end, (*cohort.dims, 0))(server, cohort.clients, work)
    taken = torch.from_numpy(schedule.steps.clip(min=1)).to(totals.device)
    return Trained(kept, uploads, totals / taken)


def of_passes(
    backend: str, passes: Iterable[Pass | Sweep], training: Training, device: torch.device
) -> str:
    """The backend that trains these passes: `compiled` is `stacked` where none of them can be
    compiled, and is called so. A program has one rate for all clients, whatever their step.
    """
    steps = [pass_ for pass_ in passes if isinstance(pass_, Pass) and not pass_.refreshes]
    alike = training.schedule_by == "rounds"
    there = bool(steps) and alike and compiled.available(device)
    return "stacked" if backend == "compiled" and not there else backend


Backend = Callable[[Pass, Cohort], Trained]

BACKENDS: dict[str, Backend] = {
    "loop": loop,
    "stacked": stacked,
    "compiled": compiled_stack,
    "debug": debug,
}

TOGETHER = ("stacked", "compiled")
"""Backends that gain from training the clients of several runs in one stack."""


def _due(pass_: Pass, step: int) -> list[tuple[int, Refresh]]:
    return [
        (i, refresh) for i, refresh in enumerate(pass_.refreshes) if refresh.is_due_after(step + 1)
    ]


def _seen(pass_: Pass, refresh: Refresh, server: Tree, work: Tree, batch: Batch) -> Tree:
    return refresh.look(server, work, ask(pass_.reference, server, work, batch))


def _differentiable(work: Tree) -> Tree:
    params = trees.apply(lambda p: p.detach().requires_grad_(), work["params"])
    return {**work, "params": params}


def _gradients(work: Tree, losses: Tensor, clip_norm: float | None) -> Tree:
    """Of each loss, by the tree's ``params``; ``losses`` has one, or [m] of a stack."""
    params = work["params"]
    # Given the gradient of the losses instead, PyTorch loads SymPy, for half a second.
    grads = torch.autograd.grad(losses.sum(), trees.leaves(params))
    return clipped(trees.unflatten(params, grads), clip_norm, stacked=losses.dim() > 0)


def _updated(pass_: Pass, server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
    if is_consuming_gradients(pass_.update):
        grads = trees.Scratch.of(grads)
    with torch.no_grad():
        return pass_.update(server, work, grads, trees.apply(Tensor.detach, aux), lr)
