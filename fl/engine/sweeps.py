"""Sweeps: one pass over every sample of clients, one client after another or all at once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import Sweep
from fl.api.trees import Tree
from fl.base.errors import FedloomError
from fl.engine.arrays import Arrays
from fl.engine.backends import TOGETHER, Cohort

Swept = tuple[Tree, Tree]
"""What clients keep and what they upload, stacked."""


@torch.no_grad()
def sweep(pass_: Sweep, cohort: Cohort, sent: Tree, backend: str) -> Swept:
    """The sweep of a cohort.

    Args:
        sent: The stacked uploads of the pass before, or {}.
    """
    return (_stacked if backend in TOGETHER else _loop)(pass_, cohort, sent)


def _loop(pass_: Sweep, cohort: Cohort, sent: Tree) -> Swept:
    done, schedule = [], cohort.schedule
    # All at once: each copy waits for what the device has to do.
    index = torch.from_numpy(schedule.index).to(cohort.arrays.device)
    for row, steps in enumerate(schedule.steps):
        server = trees.take(cohort.server, row) if cohort.several else cohort.server
        client, upload = trees.take(cohort.clients, row), trees.take(sent, row)
        seen: Tree = {}
        # A client without samples looks at one that weighs nothing, which gives zeros.
        for step in range(max(1, int(steps))):
            keep = max(1, int(schedule.weight[row, step].sum())) if steps else 1
            batch = _batch(cohort.arrays, index[row, step, :keep], bool(steps))
            more = _placed(pass_, cohort, row, server, client, upload, batch)
            seen = trees.apply(torch.add, seen, more) if seen else more
        done.append(pass_.end(server, client, upload, seen))
    kept, uploads = zip(*done, strict=True)
    return trees.stack(kept), trees.stack(uploads)


def _placed(
    pass_: Sweep, cohort: Cohort, row: int, server: Tree, client: Tree, sent: Tree, batch: Tree
) -> Tree:
    try:
        return pass_.look(server, client, sent, batch)
    except FedloomError:
        raise
    except Exception as error:
        place = f"client {int(cohort.ids[row])}, round {cohort.round}, in a sweep"
        raise FedloomError(f"{place}: {type(error).__name__}: {error}") from error


def _batch(arrays: Arrays, index: Tensor, real: bool) -> dict[str, Tensor]:
    return arrays.batch(index, torch.full_like(index, int(real)))


def _stacked(pass_: Sweep, cohort: Cohort, sent: Tree) -> Swept:
    # Those with most samples come first, so that they leave from the stack's end.
    order = np.argsort(-cohort.schedule.steps, kind="stable")
    rows = torch.from_numpy(order).to(cohort.arrays.device)
    schedule = cohort.schedule.take(order)
    server = trees.take(cohort.server, rows) if cohort.several else cohort.server
    clients, sent_rows = trees.take(cohort.clients, rows), trees.take(sent, rows)
    look = trees.vmap(pass_.look, (*cohort.dims, 0, 0))
    index, weight = (
        torch.from_numpy(array).to(rows.device) for array in (schedule.index, schedule.weight)
    )
    total: Tree = {}
    for step in range(schedule.index.shape[1]):
        active = slice(0, int((schedule.steps > step).sum()) if step else len(order))
        batch = cohort.arrays.batch(index[active, step], weight[active, step])
        shared = trees.take(server, active) if cohort.several else server
        seen = look(shared, trees.take(clients, active), trees.take(sent_rows, active), batch)
        total = _added(total, seen, active) if total else seen
    end = trees.vmap(pass_.end, (*cohort.dims, 0, 0))
    kept, uploads = end(server, clients, sent_rows, total)
    back = torch.argsort(rows)
    return trees.take(kept, back), trees.take(uploads, back)


def _added(total: Tree, seen: Tree, active: slice) -> Tree:
    def plus(sums: Tensor, more: Tensor) -> Tensor:
        sums[active] += more
        return sums

    return trees.apply(plus, total, seen)
