"""Shares of the samples, which the server sends to methods whose clients must know them."""

from __future__ import annotations

from typing import TypedDict

from torch import Tensor

from fl.api import (
    Batch,
    ClientFacts,
    Phase,
    Sweep,
    Tree,
)
from fl.blocks.first_round import is_first, send_nothing


class SharesServer(TypedDict):
    """Further state of the server.

    Attributes:
        shares: Each client's share of all training samples, [clients].
    """

    shares: Tensor


class Samples(TypedDict):
    """Upload of a client.

    Attributes:
        samples: Its number of training samples, [].
    """

    samples: Tensor


def share_samples() -> Phase:
    """Return a phase before round 1 in which all clients report their number of samples.

    The shares of clients that take part in no round are as ``init`` made them.
    """

    def count(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Samples:
        return {"samples": batch["weight"].sum()}

    def report(server: Tree, client: Tree, upload: Tree, totals: Samples) -> tuple[Tree, Samples]:
        return client, totals

    def divide(
        server: SharesServer, clients: ClientFacts, uploads: Samples, n: Tensor
    ) -> tuple[SharesServer, ClientFacts]:
        shares = (uploads["samples"] / uploads["samples"].sum()).to(server["shares"])
        all_shares = server["shares"].index_copy(0, clients["id"], shares)
        return {**server, "shares": all_shares}, clients

    return Phase(
        (Sweep(count, report),),
        divide,
        is_active=is_first,
        send=send_nothing,
        all_clients=True,
    )
