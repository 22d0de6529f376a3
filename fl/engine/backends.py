"""Backends, which train a stack of clients: one after another, or all at once.

``loop`` trains one client after another. ``stacked`` trains all clients at once, with
`torch.func.vmap` over stacked weights and buffers. ``compiled`` is ``stacked`` as one program of
several steps, see `fl.engine.compiled`. ``debug`` is ``loop`` with client, round and step in every
error; it stops at the first loss that is not finite. All backends agree to rounding.

In a sweep, each client computes sums over all of its samples, without gradients; clients are
processed one after another or all at once, too.
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
from fl.api.protocols import is_consuming_gradients, stack_gradients_of
from fl.api.term import Batch
from fl.api.training import Training, learning_rate
from fl.api.trees import Rate, Tree
from fl.base import plugins
from fl.base.errors import FedloomError
from fl.engine.batches import Schedule
from fl.engine.loader import Batches, add_reference_outputs
from fl.engine.sample_arrays import Arrays


@dataclass(frozen=True)
class ClientStack:
    """Clients that one call of a backend trains; they may belong to several runs.

    Attributes:
        clients: Their trees, stacked.
        ids: Their ids, [m].
        server: The server's tree; for several runs a stack with the tree of each client's run.
        server_is_stacked: Whether ``server`` is a stack.
        schedule: The batches of the clients.
        arrays: The samples.
        round: Number of the round.
        training: Settings of training.
        steps_by_participant: See `fl.engine.state.RoundSchedule`.
    """

    clients: Tree
    ids: Tensor
    server: Tree
    server_is_stacked: bool
    schedule: Schedule
    arrays: Arrays
    round: int
    training: Training
    steps_by_participant: np.ndarray | None = None

    @property
    def dims(self) -> tuple[int | None, int]:
        """Dimensions over which `fl.api.trees.vmap` maps the server's tree and a client's."""
        return (0 if self.server_is_stacked else None), 0

    def take_server(self, rows: int | Tensor) -> Tree:
        """Return the server's tree of one client, or ``server`` for some clients."""
        return trees.take(self.server, rows) if self.server_is_stacked else self.server

    def lr(self, step: int, steps: int) -> float:
        """Return the learning rate of a client's step, out of ``steps`` steps in this pass."""
        return learning_rate(self.training, self.round, step, steps)


class PassResult(NamedTuple):
    """Result of a pass for m clients.

    Attributes:
        client_states: Trees that stay with the clients, stacked.
        uploads: Trees that the clients send, stacked.
        losses: Mean training losses, [m].
    """

    client_states: Tree
    uploads: Tree
    losses: Tensor


StepObserver = Callable[[int, int, Tensor | None], None]
"""Function of (row, step, loss); the loss is None before it is computed."""


def loop(pass_: Pass, stack: ClientStack, observe: StepObserver | None = None) -> PassResult:
    """Train one client after another.

    Args:
        pass_: The pass.
        stack: The clients.
        observe: Function that is called before and after the loss of each step.
    """
    results = [_train_client(pass_, stack, row, observe) for row in range(len(stack.ids))]
    client_states, uploads, losses = zip(*results, strict=True)
    return PassResult(trees.stack(client_states), trees.stack(uploads), torch.stack(losses))


def _train_client(
    pass_: Pass, stack: ClientStack, row: int, observe: StepObserver | None
) -> PassResult:
    """Train one client of a stack."""
    steps = int(stack.schedule.steps[row])
    server, client = stack.take_server(row), trees.take(stack.clients, row)
    work = pass_.begin(server, client)
    schedule = stack.schedule.take(np.array([row]))
    batches = Batches(pass_, schedule, stack.arrays, [(server, work)].__getitem__)
    total = torch.zeros((), dtype=torch.float64, device=stack.arrays.device)
    for step in range(steps):
        work = _differentiable(work)
        if observe:
            observe(row, step, None)
        batch = add_reference_outputs(pass_.reference, server, work, batches.at(0, step))
        loss, aux = pass_.loss(server, work, batch)
        if observe:
            observe(row, step, loss)
        grads = clipped(_gradients(work, loss), stack.training.clip_norm, stacked=False)
        work = _update(pass_, server, work, grads, aux, stack.lr(step, steps), step)
        total = total + loss.detach()
        for number, refresh in _refreshes_after(pass_, step):
            refresh_batch = batches.refresh_batch(number, refresh, 0, step)
            with torch.no_grad():
                values = _look(pass_, refresh, server, work, refresh_batch)
                work = refresh.adapt(work, values)
    return PassResult(*pass_.end(server, client, work), total / max(1, steps))


def stacked(pass_: Pass, stack: ClientStack) -> PassResult:
    """Train all clients at once; clients that have finished leave the stack."""
    # Clients with most steps come first, so that finished clients are at the end of the stack.
    order = np.argsort(-stack.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(stack.arrays.device)
    schedule = stack.schedule.take(order)
    # Only this variable refers to the trees, so that a step frees the trees that it replaces.
    active = _ActiveClients.from_stack(pass_, stack, rows)
    batches = Batches(pass_, schedule, stack.arrays, active.models)
    gradients_of = _stack_gradients(pass_, stack.dims)
    rates = _rates(replace(stack, schedule=schedule))
    finished: list[Tree] = []
    totals = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for step, (count, batch) in enumerate(batches.iterate_steps()):
        if count < active.count:
            finished.append(trees.take(active.work, slice(count, active.count)))
            active = active.first(count)
        losses, grads, aux = gradients_of(active.server, active.work, batch)
        grads = clipped(grads, stack.training.clip_norm, stacked=True)
        if not step:
            active = active.match_layout(grads)
        lr = rates[step, :count] if isinstance(rates, Tensor) else rates
        work = _update(pass_, active.server, active.work, grads, aux, lr, step)
        active = replace(active, work=work)
        totals[:count].add_(losses)
        del work, losses, aux, grads  # Before the next step needs as much memory.
        active = _apply_refreshes(pass_, active, batches, step)
    original_order = torch.argsort(rows)
    work = trees.take(trees.concatenate([active.work, *reversed(finished)]), original_order)
    return _end_stack(pass_, stack, work, totals[original_order])


def _stack_gradients(
    pass_: Pass, dims: tuple[int | None, int]
) -> Callable[[Tree, Tree, Batch], tuple[Tensor, Tree, Tree]]:
    """Return a function that computes losses, gradients and ``aux`` of a step of a stack.

    Args:
        pass_: The pass.
        dims: See `ClientStack.dims`.
    """
    objective = trees.vmap(pass_.loss, (*dims, 0))
    by_hand = stack_gradients_of(pass_.loss)
    reference = pass_.reference and trees.vmap(pass_.reference, (*dims, 0))

    def by_autograd(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree, Tree]:
        work = _differentiable(work)
        inputs = add_reference_outputs(reference, server, work, batch)
        losses, aux = objective(server, work, inputs)
        return losses.detach(), _gradients(work, losses), aux

    def compute(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree, Tree]:
        result = by_hand and by_hand(server, work, batch)
        return result or by_autograd(server, work, batch)

    return compute


def _end_stack(pass_: Pass, stack: ClientStack, work: Tree, totals: Tensor) -> PassResult:
    """Return the result of a pass from the clients' last work trees and their summed losses."""
    end = trees.vmap(pass_.end, (*stack.dims, 0))
    client_states, uploads = end(stack.server, stack.clients, work)
    steps = torch.from_numpy(stack.schedule.steps.clip(min=1)).to(totals.device)
    return PassResult(client_states, uploads, totals / steps)


@dataclass(frozen=True)
class _ActiveClients:
    """The clients of a stack that have steps left.

    Attributes:
        server: `ClientStack.server` for these clients.
        server_is_stacked: Whether ``server`` is a stack.
        work: Their work trees, stacked.
        count: Number of clients.
    """

    server: Tree
    server_is_stacked: bool
    work: Tree
    count: int

    @classmethod
    def from_stack(cls, pass_: Pass, stack: ClientStack, rows: Tensor) -> _ActiveClients:
        """Return all clients of a stack before their first step, in the order of ``rows``."""
        server = stack.take_server(rows)
        work = trees.vmap(pass_.begin, stack.dims)(server, trees.take(stack.clients, rows))
        return cls(server, stack.server_is_stacked, work, len(rows))

    def models(self, row: int) -> tuple[Tree, Tree]:
        """Return the server's tree and the work tree of one client."""
        server = trees.take(self.server, row) if self.server_is_stacked else self.server
        return server, trees.take(self.work, row)

    def match_layout(self, grads: Tree) -> _ActiveClients:
        """Give leaves with a weight's name and shape the memory layout of the weight's gradient.

        A step that reads leaves of different layouts together takes several times as long.
        """
        with torch.no_grad():
            server = grads if self.server_is_stacked else trees.take(grads, 0)
            return replace(
                self,
                server=trees.match_layout(self.server, server),
                work=trees.match_layout(self.work, grads),
            )

    def first(self, count: int) -> _ActiveClients:
        """Return the first ``count`` clients."""
        rows = slice(0, count)
        server = trees.take(self.server, rows) if self.server_is_stacked else self.server
        work = trees.take(self.work, rows)
        return _ActiveClients(server, self.server_is_stacked, work, count)


def _rates(stack: ClientStack) -> Rate:
    """Return the learning rates, [steps, m]; one number if all steps have the same rate."""
    if stack.training.schedule_by == "rounds":
        return stack.lr(0, 1)
    steps_by_client = stack.schedule.steps.tolist()
    rates_by_steps = {
        steps: [stack.lr(step, max(1, steps)) for step in range(max(steps_by_client))]
        for steps in set(steps_by_client)
    }
    rates = [rates_by_steps[steps] for steps in steps_by_client]
    table = torch.tensor(rates, dtype=stack.arrays.dtype)
    # One copy for all steps, because each copy waits until the device is idle.
    return table.T.to(stack.arrays.device)


def _apply_refreshes(
    pass_: Pass, active: _ActiveClients, batches: Batches, step: int
) -> _ActiveClients:
    """Return the clients after the refreshes that follow a step."""
    for number, refresh in _refreshes_after(pass_, step):
        with torch.no_grad():
            # One client after another, because each client uses many batches at once.
            values = []
            for row in range(active.count):
                batch = batches.refresh_batch(number, refresh, row, step)
                values.append(_look(pass_, refresh, *active.models(row), batch))
            active = replace(active, work=refresh.adapt(active.work, trees.stack(values)))
    return active


def debug(pass_: Pass, stack: ClientStack) -> PassResult:
    """Train like `loop`, and name client, round and step in every error."""
    location = "before the first step"

    def observe(row: int, step: int, loss: Tensor | None) -> None:
        nonlocal location
        location = f"client {int(stack.ids[row])}, round {stack.round}, step {step}"
        if loss is not None and not torch.isfinite(loss):
            raise FedloomError(f"{location}: the loss is {loss.item()}")

    try:
        return loop(pass_, stack, observe)
    except FedloomError:
        raise
    except Exception as error:
        raise FedloomError(f"{location}: {plugins.describe(error)}") from error


def compiled_stack(pass_: Pass, stack: ClientStack) -> PassResult:
    """Train like `stacked`, by a compiled program if the pass contains only steps."""
    device = stack.arrays.device
    if resolve_backend("compiled", [pass_], stack.training, device) != "compiled":
        return stacked(pass_, stack)
    from fl.engine import compiled

    work = trees.vmap(pass_.begin, stack.dims)(stack.server, stack.clients)
    width = compiled.stack_width(len(stack.ids), stack.steps_by_participant)
    work, totals = compiled.train(
        pass_,
        stack.server,
        stack.server_is_stacked,
        work,
        stack.arrays,
        stack.schedule,
        stack.lr(0, 1),
        width,
        stack.training.clip_norm,
    )
    return _end_stack(pass_, stack, work, totals)


def resolve_backend(
    backend: str, passes: Iterable[Pass | Sweep], training: Training, device: torch.device
) -> str:
    """Return the backend that trains the given passes.

    It is `stacked` instead of `compiled` if no pass can be compiled: a program has one learning
    rate for all clients and steps, and no refreshes.

    Args:
        backend: Name of the chosen backend.
        passes: The passes.
        training: Settings of training.
        device: The device.
    """
    if backend != "compiled":
        return backend
    from fl.engine import compiled  # Few runs take so many steps that they need it.

    plain_passes = [pass_ for pass_ in passes if isinstance(pass_, Pass) and not pass_.refreshes]
    has_one_rate = training.schedule_by == "rounds"
    can_compile = bool(plain_passes) and has_one_rate and compiled.is_available(device)
    return "compiled" if can_compile else "stacked"


Backend = Callable[[Pass, ClientStack], PassResult]

BACKENDS: dict[str, Backend] = {
    "loop": loop,
    "stacked": stacked,
    "compiled": compiled_stack,
    "debug": debug,
}

STACKING_BACKENDS = ("stacked", "compiled")
"""Backends that are faster if the clients of several runs are trained in one stack."""


def _refreshes_after(pass_: Pass, step: int) -> list[tuple[int, Refresh]]:
    """Return the refreshes that follow a step, with their indices."""
    return [
        (i, refresh) for i, refresh in enumerate(pass_.refreshes) if refresh.is_due_after(step + 1)
    ]


def _look(pass_: Pass, refresh: Refresh, server: Tree, work: Tree, batch: Batch) -> Tree:
    batch = add_reference_outputs(pass_.reference, server, work, batch)
    return refresh.look(server, work, batch)


def _differentiable(work: Tree) -> Tree:
    """Return a work tree whose parameters require gradients."""
    params = trees.apply(lambda p: p.detach().requires_grad_(), work["params"])
    return {**work, "params": params}


class NothingToTrain(FedloomError):
    """The error for a pass that trains no weight."""


def _gradients(work: Tree, losses: Tensor) -> Tree:
    """Return the gradient of the loss, or of each client's loss, [m], by ``params``.

    Raises:
        FedloomError: If the loss does not depend on some weights.
    """
    params = work["params"]
    advice = "a model whose weights all have a part in its outputs"
    if not losses.requires_grad:
        names = [*trees.names(params)]
        if not names:
            raise NothingToTrain("a pass of the method trains no weight of this model")
        raise FedloomError(f"no gradient reaches {', '.join(names[:5])}", advice=advice)
    # The sum avoids `grad_outputs`, for which PyTorch imports SymPy (half a second).
    grads = torch.autograd.grad(losses.sum(), trees.leaves(params), allow_unused=True)
    if any(slope is None for slope in grads):
        pairs = zip(trees.names(params), grads, strict=True)
        unused = [name for name, slope in pairs if slope is None]
        raise FedloomError(f"no gradient reaches {', '.join(unused[:5])}", advice=advice)
    return trees.unflatten(params, grads)


def _update(
    pass_: Pass, server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate, step: int
) -> Tree:
    """Return the work tree after a step of number 0, 1, ..."""
    if is_consuming_gradients(pass_.update):
        # The first step's weights are the server's or the client's.
        grads = trees.Scratch.of(grads, in_place=step > 0)
    with torch.no_grad():
        return pass_.update(server, work, grads, trees.apply(Tensor.detach, aux), lr)


SweepResult = tuple[Tree, Tree]
"""Trees that stay with clients, and their uploads, both stacked."""


@torch.no_grad()
def run_sweep(pass_: Sweep, stack: ClientStack, uploads: Tree, backend: str) -> SweepResult:
    """Run the sweep of a stack.

    Args:
        pass_: The sweep.
        stack: The clients.
        uploads: Their stacked uploads of the previous pass, or {}.
        backend: Name of the backend.

    Returns:
        Trees that stay with the clients, and their uploads.
    """
    sweep = _sweep_stack if backend in STACKING_BACKENDS else _sweep_one_by_one
    return sweep(pass_, stack, uploads)


def _sweep_one_by_one(pass_: Sweep, stack: ClientStack, uploads: Tree) -> SweepResult:
    results, schedule = [], stack.schedule
    # One copy for all clients, because each copy waits until the device is idle.
    index = torch.from_numpy(schedule.index).to(stack.arrays.device)
    for row, steps in enumerate(schedule.steps):
        server = stack.take_server(row)
        client, upload = trees.take(stack.clients, row), trees.take(uploads, row)
        total: Tree = {}
        # A client without samples uses one sample of weight 0, which gives zeros.
        for step in range(max(1, int(steps))):
            size = max(1, int(schedule.weight[row, step].sum())) if steps else 1
            batch = _batch(stack.arrays, index[row, step, :size], bool(steps))
            values = _sweep_look(pass_, stack, row, server, client, upload, batch)
            total = trees.apply(torch.add, total, values) if total else values
        results.append(pass_.end(server, client, upload, total))
    client_states, new_uploads = zip(*results, strict=True)
    return trees.stack(client_states), trees.stack(new_uploads)


def _sweep_look(
    pass_: Sweep,
    stack: ClientStack,
    row: int,
    server: Tree,
    client: Tree,
    upload: Tree,
    batch: Tree,
) -> Tree:
    """Compute the sweep's values for a batch; an error names the client and the round."""
    try:
        return pass_.look(server, client, upload, batch)
    except FedloomError:
        raise
    except Exception as error:
        location = f"client {int(stack.ids[row])}, round {stack.round}, in a sweep"
        raise FedloomError(f"{location}: {type(error).__name__}: {error}") from error


def _batch(arrays: Arrays, index: Tensor, has_weight: bool) -> Tree:
    return arrays.batch(index, torch.full_like(index, int(has_weight)))


def _sweep_stack(pass_: Sweep, stack: ClientStack, uploads: Tree) -> SweepResult:
    # Clients with most samples come first, so that finished clients are at the end of the stack.
    order = np.argsort(-stack.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(stack.arrays.device)
    schedule = stack.schedule.take(order)
    server = stack.take_server(rows)
    clients, ordered_uploads = trees.take(stack.clients, rows), trees.take(uploads, rows)
    look = trees.vmap(pass_.look, (*stack.dims, 0, 0))
    index, weight = (
        torch.from_numpy(array).to(rows.device) for array in (schedule.index, schedule.weight)
    )
    total: Tree = {}
    for step in range(schedule.index.shape[1]):
        active = slice(0, int((schedule.steps > step).sum()) if step else len(order))
        batch = stack.arrays.batch(index[active, step], weight[active, step])
        active_server = trees.take(server, active) if stack.server_is_stacked else server
        active_uploads = trees.take(ordered_uploads, active)
        values = look(active_server, trees.take(clients, active), active_uploads, batch)
        total = _add_to_rows(total, values, active) if total else values
    end = trees.vmap(pass_.end, (*stack.dims, 0, 0))
    client_states, new_uploads = end(server, clients, ordered_uploads, total)
    original_order = torch.argsort(rows)
    return trees.take(client_states, original_order), trees.take(new_uploads, original_order)


def _add_to_rows(total: Tree, values: Tree, active: slice) -> Tree:
    def add(sums: Tensor, value: Tensor) -> Tensor:
        sums[active] += value
        return sums

    return trees.apply(add, total, values)
