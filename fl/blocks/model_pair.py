"""Two models that train on the same batches: a shared one and one of the client's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from fl.api import (
    GLOBAL,
    PERSONAL,
    Batch,
    Method,
    Pass,
    Rate,
    Refresh,
    Tree,
    View,
    WeightedAverage,
    consumes_gradients,
    is_consuming_gradients,
    single_pass,
    trees,
)

BASE_KEY, PERSONAL_KEY = "base", "own"


def shared_and_personal(base: Method, personal: Method) -> Method:
    """Combine the method ``base`` with ``personal``, a method whose weights all stay local.

    The personal method receives the server's tree of ``base`` as its shared tree; so a term such as
    `fl.blocks.proximal.proximal_term` ties the personal model to the shared one. The training loss
    is the sum of both losses. Each of the two methods has one pass.
    """

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, first = base.init(variables)
        return server, {BASE_KEY: first, PERSONAL_KEY: personal.init(variables)[1]}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        server, client_states = base.aggregate(server, clients[BASE_KEY], uploads, n)
        return server, {**clients, BASE_KEY: client_states}

    def view_of(view: View, key: str) -> View:
        return lambda server, client: view(server, client and client[key])

    views = {
        GLOBAL: view_of(base.views[GLOBAL], BASE_KEY),
        PERSONAL: view_of(personal.views[PERSONAL], PERSONAL_KEY),
    }
    first, second = single_pass(base), single_pass(personal)
    averaging = isinstance(base.aggregate, WeightedAverage)
    merged = WeightedAverage(aggregate) if averaging else aggregate
    return Method(init, (_joint_pass(first, second),), merged, views)


def _joint_pass(first: Pass, second: Pass) -> Pass:
    passes = {BASE_KEY: first, PERSONAL_KEY: second}

    def begin(server: Tree, client: Tree) -> Tree:
        return _join_work({key: p.begin(server, client[key]) for key, p in passes.items()})

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        losses = {
            key: p.loss(server, _work_of(work, key), _batch_of(batch, key))
            for key, p in passes.items()
        }
        return losses[BASE_KEY][0] + losses[PERSONAL_KEY][0], {
            key: aux for key, (_, aux) in losses.items()
        }

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        as_scratch = trees.Scratch if isinstance(grads, trees.Scratch) else dict
        return _join_work(
            {
                key: p.update(server, _work_of(work, key), as_scratch(grads[key]), aux[key], lr)
                for key, p in passes.items()
            }
        )

    if all(is_consuming_gradients(p.update) for p in passes.values()):
        update = consumes_gradients(update)

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        shared_state, upload = first.end(server, client[BASE_KEY], _work_of(work, BASE_KEY))
        personal_state, _ = second.end(server, client[PERSONAL_KEY], _work_of(work, PERSONAL_KEY))
        return {**client, BASE_KEY: shared_state, PERSONAL_KEY: personal_state}, upload

    def reference(server: Tree, work: Tree, batch: Batch) -> Tree:
        return {
            key: reference_of(server, _work_of(work, key), batch)
            for key, reference_of in references.items()
        }

    references = {key: p.reference for key, p in passes.items() if p.reference}
    refreshes = tuple(_refresh_of(key, r) for key, p in passes.items() for r in p.refreshes)
    return Pass(
        begin, loss, update, end, first.sampling, refreshes, reference if references else None
    )


def _refresh_of(key: str, refresh: Refresh) -> Refresh:
    """Return a refresh of one of the two methods, for the work tree of both."""

    def look(server: Tree, work: Tree, batch: Batch) -> Tree:
        return refresh.look(server, _work_of(work, key), _batch_of(batch, key))

    def adapt(work: Tree, observed: Tree) -> Tree:
        adapted = refresh.adapt(_work_of(work, key), observed)
        return {**work, key: {name: leaf for name, leaf in adapted.items() if name != "params"}}

    return replace(refresh, look=look, adapt=adapt)


def _join_work(work_trees: Mapping[str, Tree]) -> Tree:
    """Return one work tree, with the ``params`` of both."""
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
