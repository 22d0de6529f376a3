"""Dual variables of local training: each client adds what it has moved so far to its own gradient.

A step goes along g + lam (w - w^t + u_k), where u_k is the sum of the client's moves of all its
rounds. The client sends w_k + u_k, with its newest move in u_k.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from fl.api import Method, Rate, Tree, single_pass, trees

DUAL = "dual"


def with_dual_correction(base: Method, lam: float) -> Method:
    """Return a method of one pass with dual variables (FedSpeed, algorithm 1, with lam = 1/lambda).

    Args:
        base: The method; its server averages.
        lam: Weight of the correction; 0 leaves steps as they are, and uploads still contain u_k.
    """
    local = single_pass(base)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        return server, {**client, DUAL: trees.zeros_like(variables["params"])}

    def begin(server: Tree, client: Tree) -> Tree:
        return {**local.begin(server, client), DUAL: client[DUAL]}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        corrected = trees.apply(
            lambda g, w, sent, u: g + lam * (w - sent + u),
            grads,
            work["params"],
            server["params"],
            work[DUAL],
        )
        return local.update(server, work, corrected, aux, lr)

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        client_state, upload = local.end(server, client, work)
        moved = trees.apply(torch.sub, upload["params"], server["params"])
        dual = trees.apply(torch.add, client[DUAL], moved)
        params = trees.apply(torch.add, upload["params"], dual)
        return {**client_state, DUAL: dual}, {**upload, "params": params}

    step = replace(local, begin=begin, update=update, end=end)
    return replace(base, init=init, passes=(step,))
