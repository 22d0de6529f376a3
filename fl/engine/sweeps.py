"""Sweeps: each client computes sums over all of its samples, without gradients.

Clients are processed one after another or all at once.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Sweep
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.engine.backends import STACKING_BACKENDS, Cohort
from fl.engine.sample_arrays import Arrays

SweepResult = tuple[Tree, Tree]
"""Trees that stay with clients, and their uploads, both stacked."""


@torch.no_grad()
def run_sweep(pass_: Sweep, cohort: Cohort, uploads: Tree, backend: str) -> SweepResult:
    """Run the sweep of a cohort.

    Args:
        pass_: The sweep.
        cohort: The clients.
        uploads: Their stacked uploads of the previous pass, or {}.
        backend: Name of the backend.

    Returns:
        Trees that stay with the clients, and their uploads.
    """
    sweep = _sweep_stack if backend in STACKING_BACKENDS else _sweep_one_by_one
    return sweep(pass_, cohort, uploads)


def _sweep_one_by_one(pass_: Sweep, cohort: Cohort, uploads: Tree) -> SweepResult:
    results, schedule = [], cohort.schedule
    # One copy for all clients, because each copy waits until the device is idle.
    index = torch.from_numpy(schedule.index).to(cohort.arrays.device)
    for row, steps in enumerate(schedule.steps):
        server = trees.take(cohort.server, row) if cohort.server_is_stacked else cohort.server
        client, upload = trees.take(cohort.clients, row), trees.take(uploads, row)
        total: Tree = {}
        # A client without samples uses one sample of weight 0, which gives zeros.
        for step in range(max(1, int(steps))):
            size = max(1, int(schedule.weight[row, step].sum())) if steps else 1
            batch = _batch(cohort.arrays, index[row, step, :size], bool(steps))
            values = _look(pass_, cohort, row, server, client, upload, batch)
            total = trees.apply(torch.add, total, values) if total else values
        results.append(pass_.end(server, client, upload, total))
    client_states, new_uploads = zip(*results, strict=True)
    return trees.stack(client_states), trees.stack(new_uploads)


def _look(
    pass_: Sweep, cohort: Cohort, row: int, server: Tree, client: Tree, upload: Tree, batch: Tree
) -> Tree:
    """Compute the sweep's values for a batch; an error names the client and the round."""
    try:
        return pass_.look(server, client, upload, batch)
    except FedloomError:
        raise
    except Exception as error:
        location = f"client {int(cohort.ids[row])}, round {cohort.round}, in a sweep"
        raise FedloomError(f"{location}: {type(error).__name__}: {error}") from error


def _batch(arrays: Arrays, index: Tensor, has_weight: bool) -> Tree:
    return arrays.batch(index, torch.full_like(index, int(has_weight)))


def _sweep_stack(pass_: Sweep, cohort: Cohort, uploads: Tree) -> SweepResult:
    # Clients with most samples come first, so that finished clients are at the end of the stack.
    order = np.argsort(-cohort.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(cohort.arrays.device)
    schedule = cohort.schedule.take(order)
    server = trees.take(cohort.server, rows) if cohort.server_is_stacked else cohort.server
    clients, ordered_uploads = trees.take(cohort.clients, rows), trees.take(uploads, rows)
    look = trees.vmap(pass_.look, (*cohort.dims, 0, 0))
    index, weight = (
        torch.from_numpy(array).to(rows.device) for array in (schedule.index, schedule.weight)
    )
    total: Tree = {}
    for step in range(schedule.index.shape[1]):
        active = slice(0, int((schedule.steps > step).sum()) if step else len(order))
        batch = cohort.arrays.batch(index[active, step], weight[active, step])
        active_server = trees.take(server, active) if cohort.server_is_stacked else server
        active_uploads = trees.take(ordered_uploads, active)
        values = look(active_server, trees.take(clients, active), active_uploads, batch)
        total = _add_to_rows(total, values, active) if total else values
    end = trees.vmap(pass_.end, (*cohort.dims, 0, 0))
    client_states, new_uploads = end(server, clients, ordered_uploads, total)
    original_order = torch.argsort(rows)
    return trees.take(client_states, original_order), trees.take(new_uploads, original_order)


def _add_to_rows(total: Tree, values: Tree, active: slice) -> Tree:
    def add(sums: Tensor, value: Tensor) -> Tensor:
        sums[active] += value
        return sums

    return trees.apply(add, total, values)
