"""Dual variables of local training: each client adds what it has moved so far to its own gradient.

A step goes along g + lam (w - w^t + u_k), where u_k is the sum of the client's moves of all its
rounds. Clients count alike in the server's mean, as their dual variables do; running statistics are
averaged by samples.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fl.api import BuildContext, MeanBased, Method, Rate, Tree, single_pass, trees
from fl.blocks.exchange import send_all_but

DUAL = "dual"


def with_dual_correction(
    base: Method, context: BuildContext, lam: float, of_all: bool = False
) -> Method:
    """Return a method of one pass with dual variables, with lam for the papers' 1/lambda.

    The server's model is the mean over the round's clients of w_k + u_k, with the newest move in
    u_k (FedSpeed); or the mean of w_k, plus the mean of u_k over all clients (FedSMOO, as FedDyn).

    Args:
        base: The method; its server averages.
        context: The context in which it was built.
        lam: Weight of the correction; 0 leaves steps as they are, but not the server's model.
        of_all: Whether the mean of dual variables is over all clients.
    """
    local = single_pass(base)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        zeros = trees.zeros_like(variables["params"])
        return {**server, **({DUAL: zeros} if of_all else {})}, {**client, DUAL: zeros}

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
        if of_all:
            return {**client_state, DUAL: dual}, upload
        params = trees.apply(torch.add, upload["params"], dual)
        return {**client_state, DUAL: dual}, {**upload, "params": params}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        next_server, client_states = base.aggregate(server, clients, uploads, n)
        params = trees.mean(uploads["params"], torch.ones_like(n))
        if not of_all:
            return {**next_server, "params": params}, client_states
        share = len(n) / context.participants
        dual = trees.apply(
            lambda h, w, sent: h + share * (w - sent), server[DUAL], params, server["params"]
        )
        params = trees.apply(torch.add, params, dual)
        return {**next_server, "params": params, DUAL: dual}, client_states

    step = replace(local, begin=begin, update=update, end=end)
    send = send_all_but(DUAL) if of_all else base.send
    return replace(base, init=init, passes=(step,), aggregate=MeanBased(aggregate), send=send)
