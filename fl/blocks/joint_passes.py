"""Several models that train on the same batches: one pass whose loss is the sum of theirs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from operator import add

from torch import Tensor

from fl.api import (
    Batch,
    Pass,
    Rate,
    Refresh,
    Tree,
    consumes_gradients,
    is_consuming_gradients,
    stack_gradients_of,
    with_stack_gradients,
)


def joint_pass(passes: Mapping[str, Pass], has_server_parts: bool = False) -> Pass:
    """Return a pass that does several passes at once, each on its part of the trees.

    Each pass has a part of the client's tree, of the work tree and of the upload, under its key.
    Other keys of the client's tree and of the work tree are left as they are. Samples are taken as
    the first of the passes takes them.

    Args:
        passes: The passes by key.
        has_server_parts: Whether the server's tree has such parts too; else all passes get the
            whole tree.
    """

    def server_of(server: Tree, key: str) -> Tree:
        return server[key] if has_server_parts else server

    def begin(server: Tree, client: Tree) -> Tree:
        return _join_work(
            {key: p.begin(server_of(server, key), client[key]) for key, p in passes.items()}
        )

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        losses = {
            key: p.loss(server_of(server, key), _work_of(work, key), _batch_of(batch, key))
            for key, p in passes.items()
        }
        total = reduce(add, (value for value, _ in losses.values()))
        return total, {key: aux for key, (_, aux) in losses.items()}

    def gradients(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree, Tree] | None:
        results = {
            key: by_hand(server_of(server, key), _work_of(work, key), _batch_of(batch, key))
            for key, by_hand in by_hand_of.items()
            if by_hand
        }
        losses, grads, aux = {}, {}, {}
        for key, result in results.items():
            if result is None:
                return None
            losses[key], grads[key], aux[key] = result
        return reduce(add, losses.values()), grads, aux

    by_hand_of = {key: stack_gradients_of(p.loss) for key, p in passes.items()}
    is_by_hand = all(by_hand_of.values())

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        updated = {
            key: p.update(server_of(server, key), _work_of(work, key), grads[key], aux[key], lr)
            for key, p in passes.items()
        }
        return {**work, **_join_work(updated)}

    if all(is_consuming_gradients(p.update) for p in passes.values()):
        update = consumes_gradients(update)

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        ends = {
            key: p.end(server_of(server, key), client[key], _work_of(work, key))
            for key, p in passes.items()
        }
        client_states = {key: client_state for key, (client_state, _) in ends.items()}
        return {**client, **client_states}, {key: upload for key, (_, upload) in ends.items()}

    def reference(server: Tree, work: Tree, batch: Batch) -> Tree:
        return {
            key: reference_of(server_of(server, key), _work_of(work, key), batch)
            for key, reference_of in references.items()
        }

    references = {key: p.reference for key, p in passes.items() if p.reference}
    refreshes = tuple(
        _refresh_of(key, refresh, server_of) for key, p in passes.items() for refresh in p.refreshes
    )
    sampling = next(iter(passes.values())).sampling
    marked_loss = with_stack_gradients(loss, gradients) if is_by_hand else loss
    return Pass(
        begin, marked_loss, update, end, sampling, refreshes, reference if references else None
    )


def _refresh_of(key: str, refresh: Refresh, server_of: Callable[[Tree, str], Tree]) -> Refresh:
    """Return a refresh of one of the passes, for the work tree of all."""

    def look(server: Tree, work: Tree, batch: Batch) -> Tree:
        return refresh.look(server_of(server, key), _work_of(work, key), _batch_of(batch, key))

    def adapt(work: Tree, observed: Tree) -> Tree:
        adapted = refresh.adapt(_work_of(work, key), observed)
        return {**work, key: {name: leaf for name, leaf in adapted.items() if name != "params"}}

    return replace(refresh, look=look, adapt=adapt)


def _join_work(work_trees: Mapping[str, Tree]) -> Tree:
    """Return one work tree, with the ``params`` of all."""
    other_leaves = {
        key: {k: v for k, v in work_tree.items() if k != "params"}
        for key, work_tree in work_trees.items()
    }
    return {
        "params": {key: work_tree["params"] for key, work_tree in work_trees.items()},
        **other_leaves,
    }


def _work_of(work: Tree, key: str) -> Tree:
    return {**work[key], "params": work["params"][key]}


def _batch_of(batch: Batch, key: str) -> Batch:
    if key not in batch.get("reference", {}):
        return batch
    return {**batch, "reference": batch["reference"][key]}
