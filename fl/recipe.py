"""Methods from parts: a loss of several terms, and weights that stay local or are shared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor

from fl import trees
from fl.method import Batch, Method, Pass, Setting, View
from fl.parts.losses import Forward, Term, cross_entropy
from fl.parts.optimizers import optimizer
from fl.schema import GLOBAL, PERSONAL
from fl.trees import Tree

KINDS = ("params", "buffers")

Predicate = Callable[[str], bool]
"""Which weights, by their name in the module."""


def everything(name: str) -> bool:
    """Every weight."""
    return True


def nothing(name: str) -> bool:
    """No weight."""
    return False


def recipe(
    setting: Setting,
    *,
    terms: tuple[Term, ...] = (cross_entropy,),
    local: Predicate = nothing,
    keep_optimizer: bool = False,
) -> Method:
    """Local training on the sum of ``terms``, then the sample-weighted mean of what is shared.

    local: weights and buffers that never leave the client (all of them: no federation at all).
    keep_optimizer: the optimizer's state stays with the client from round to round; otherwise each
        round starts afresh.
    """
    network, optim = setting.network, optimizer(setting.training)

    def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
        server = _select(variables, lambda name: not local(name))
        client = _select(variables, local)
        if keep_optimizer:
            client["optimizer"] = optim.init(variables["params"])
        return server, client

    def begin(server: Tree, client: Tree) -> dict[str, Any]:
        work = _merge(server, client)
        kept = client["optimizer"] if keep_optimizer else optim.init(work["params"])
        return {**work, "optimizer": kept}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        outputs, buffers = network.train(work["params"], work["buffers"], batch["x"])
        forward = Forward(outputs, work["params"], server["params"], batch)
        return reduce(add, (term(forward) for term in terms)), {"buffers": buffers}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: float) -> dict[str, Any]:
        params, state = optim.step(work["params"], grads, work["optimizer"], lr)
        return {"params": params, "buffers": aux["buffers"], "optimizer": state}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
        kept = _select(work, local)
        if keep_optimizer:
            kept["optimizer"] = work["optimizer"]
        return {**client, **kept}, _select(work, lambda name: not local(name))

    def aggregate(
        server: Tree, clients: Tree, uploads: Tree, n: Tensor
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return trees.mean(uploads, n), dict(clients)

    names = [name for kind in KINDS for name in network.names[kind]]
    return Method(init, (Pass(begin, loss, update, end),), aggregate, _views(names, local))


def _views(names: list[str], local: Predicate) -> Mapping[str, View]:
    """Shared weights are evaluated as the global model, anything local as a personal one."""
    if any(local(name) for name in names):
        return {PERSONAL: lambda server, client: _merge(server, client or {})}
    return {GLOBAL: lambda server, client: _select(server, everything)}


def _select(variables: Tree, chosen: Predicate) -> dict[str, Any]:
    return {kind: {n: t for n, t in variables[kind].items() if chosen(n)} for kind in KINDS}


def _merge(server: Tree, client: Tree) -> dict[str, Any]:
    return {kind: {**server[kind], **client[kind]} for kind in KINDS}
