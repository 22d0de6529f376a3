"""Phases before round 1: clients send means over their samples, or get what the server made."""

from __future__ import annotations

from torch import Tensor

from fl.api import AnyTree, Batch, Pass, Phase, Sweep, Tree, WeightedAverage, trees
from fl.api.protocols import RoundFilter, Send, SweepLook
from fl.blocks.exchange import aggregate_nothing


def is_first(round_: int) -> bool:
    """Whether a round is the first."""
    return round_ == 1


def send_nothing(server: Tree) -> Tree:
    """Send clients nothing, in a phase for which they need nothing."""
    return {}


def means_of_samples(sums: SweepLook) -> Sweep:
    """Return a sweep after which a client uploads means over its training samples.

    Args:
        sums: Function that returns sums over a batch, and under ``count`` its number of samples.
    """

    def end(
        server: Tree, client: AnyTree, upload: Tree, totals: dict[str, Tensor]
    ) -> tuple[AnyTree, Tree]:
        count = totals["count"].clamp(min=1)
        return client, {key: total / count for key, total in totals.items() if key != "count"}

    return Sweep(sums, end)


def mean_before_round_1(
    sums: SweepLook,
    *,
    passes: tuple[Pass, ...] = (),
    send: Send | None = send_nothing,
    all_clients: bool = False,
) -> Phase:
    """Return a phase before round 1 after which the server's state has a mean over all samples.

    Args:
        sums: Function as in `means_of_samples`; the entries of the server's state have its keys.
        passes: Passes of a client before that, whose upload ``sums`` gets.
        send: Function from the server's state to what clients get; None: the whole state.
        all_clients: Whether all clients take part, and not only those drawn for round 1.
    """

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        return {**server, **trees.mean(uploads, n)}, clients

    return Phase(
        (*passes, means_of_samples(sums)),
        WeightedAverage(aggregate),
        is_active=is_first,
        send=send,
        all_clients=all_clients,
    )


def copy_to_clients(key: str, copy: str, is_active: RoundFilter = is_first) -> Phase:
    """Return a phase in which all clients get a part of the server's state, and keep it.

    Args:
        key: Key of the part in the server's state.
        copy: Key of the copy in a client's state.
        is_active: Whether the phase takes place in a round.
    """

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        return {"samples": batch["weight"].sum()}

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        return {**client, copy: server[key]}, {}

    # A sweep over no sample, as a client's state changes in a pass or a sweep.
    return Phase(
        (Sweep(look, end, split="none"),),
        aggregate_nothing,
        is_active=is_active,
        send=lambda server: {key: server[key]},
        all_clients=True,
    )
