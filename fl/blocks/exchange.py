"""What the server sends to clients, and phases in which clients send nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from fl.api import (
    AnyTree,
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

AnyPass = TypeVar("AnyPass", bound=Pass)


def send_all_but(*keys: str) -> Callable[[Tree], Tree]:
    """Return a method's ``send`` that keeps ``keys`` of the server's tree on the server."""
    return lambda server: {key: leaf for key, leaf in server.items() if key not in keys}


def aggregate_nothing(
    server: AnyTree, clients: Tree, uploads: object, n: Tensor
) -> tuple[AnyTree, Tree]:
    """Aggregate of a phase in which clients send nothing; both states stay as they are."""
    return server, clients


def train_from_payload(pass_: AnyPass) -> AnyPass:
    """Return the pass with the client's ``payload`` in place of the server's state.

    A proximal term, for example, then pulls towards the model that the server made for this client.
    """

    def begin(server: Tree, client: Tree) -> Tree:
        return {**pass_.begin(client["payload"], client), "payload": client["payload"]}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        return pass_.loss(work["payload"], work, batch)

    def gradients(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree, Tree] | None:
        return by_hand(work["payload"], work, batch) if by_hand else None

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        return pass_.update(work["payload"], work, grads, aux, lr)

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        return pass_.end(client["payload"], client, work)

    def reference(server: Tree, work: Tree, batch: Batch) -> Tree:
        return payload_reference(work["payload"], work, batch)

    def refresh_on_payload(refresh: Refresh) -> Refresh:
        def look(server: Tree, work: Tree, batch: Batch) -> Tree:
            return refresh.look(work["payload"], work, batch)

        return replace(refresh, look=look)

    by_hand = stack_gradients_of(pass_.loss)
    if is_consuming_gradients(pass_.update):
        update = consumes_gradients(update)
    marked_loss = with_stack_gradients(loss, gradients) if by_hand else loss
    changed = replace(pass_, begin=begin, loss=marked_loss, update=update, end=end)
    if pass_.reference:
        payload_reference = pass_.reference
        changed = replace(changed, reference=reference)
    return replace(changed, refreshes=tuple(map(refresh_on_payload, pass_.refreshes)))
