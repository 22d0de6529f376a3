"""Shares of the samples, which the server sends to methods whose clients must know them."""

from __future__ import annotations

from torch import Tensor

from fl.api import Batch, Phase, Sweep, Tree

SHARES = "shares"
"""Key in the server's tree: each client's share of all training samples, [clients]."""


def share_samples() -> Phase:
    """Return a phase before round 1 in which all clients report their number of samples.

    The shares of clients that take part in no round are as ``init`` made them.
    """

    def count(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        return {"samples": batch["weight"].sum()}

    def report(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        return dict(client), dict(totals)

    def divide(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        shares = (uploads["samples"] / uploads["samples"].sum()).to(server[SHARES])
        all_shares = server[SHARES].index_copy(0, clients["id"], shares)
        return {**server, SHARES: all_shares}, dict(clients)

    return Phase(
        (Sweep(count, report),),
        divide,
        is_active=lambda round_: round_ == 1,
        send=lambda server: {},
        all_clients=True,
    )
