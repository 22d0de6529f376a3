"""Methods whose clients share anchors, the mean feature of every class (`fl.blocks.anchors`).

Anchors come to the server in one of two ways: in a phase of their own before clients train, or
with what clients send after training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from fl.api import (
    KINDS,
    PERSONAL_PARAMS,
    Aggregate,
    Averaging,
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Network,
    Pass,
    Phase,
    Sweep,
    Tree,
)
from fl.blocks.anchors import local_anchors, look_at, no_anchors

ANCHORS = "anchors"
"""In the server's tree, [classes, features]; zero for a class without an anchor."""
ROUND, TRAINED = "anchors' round", "anchors' model"
"""In the server's tree, the round's number; in a client's, for a moment, what it just trained."""

Gather = Callable[[Tensor, Tree], Tensor]
"""(anchors before, what clients send, see `fl.blocks.anchors.local_anchors`) -> anchors."""
Start = Callable[[Network, Tree, int], Tensor]
"""(network, first variables, classes) -> what the server has before there are anchors."""
Told = tuple[Tree, Tree]


def anchored_before(method: Method, context: BuildContext, gather: Gather, first: int) -> Method:
    """The method, with a phase before each round that renews the anchors.

    The anchors are of the model that is sent, completed by the client's own weights.

    Args:
        gather: Makes the anchors of all clients from what they send.
        first: The first round with that phase.
    """
    network, classes = context.network, context.classes

    def look(server: Tree, client: Tree, sent: Tree, batch: Batch) -> Tree:
        return look_at(network, _whole(network, client, server), batch, classes)

    def end(server: Tree, client: Tree, sent: Tree, seen: Tree) -> Told:
        return dict(client), local_anchors(seen)

    def renew(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> Told:
        anchors = gather(server[ANCHORS], uploads)
        return {**server, ANCHORS: anchors}, dict(clients)

    made = _with(method, context, (ANCHORS,), method.aggregate, no_anchors)
    before = Phase((Sweep(look, end),), renew, due=lambda round_: round_ >= first, send=made.send)
    return replace(made, before=(*method.before, before))


def anchored_after(
    method: Method, context: BuildContext, gather: Gather, first: int = 1, start: Start = no_anchors
) -> Method:
    """The method, whose clients send the anchors of what they just trained with the rest.

    These anchors guide in the next round.

    Args:
        gather: As in `anchored_before`.
        first: The first round in which anchors guide.
        start: What the server has before there are any.

    Raises:
        FedloomError: For a method that does not end a round with training.
    """
    network, classes = context.network, context.classes
    *others, last = method.passes
    if isinstance(last, Sweep):
        raise FedloomError(
            "anchors: the method looks at its samples after training already. Allowed: a method "
            "that ends a round with training"
        )

    def look(server: Tree, client: Tree, sent: Tree, batch: Batch) -> Tree:
        return look_at(network, client[TRAINED], batch, classes)

    def end(server: Tree, client: Tree, sent: Tree, seen: Tree) -> Told:
        kept = {key: leaf for key, leaf in client.items() if key != TRAINED}
        return kept, {**sent, ANCHORS: local_anchors(seen)}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> Told:
        rest = {key: leaf for key, leaf in uploads.items() if key != ANCHORS}
        after, kept = method.aggregate(server, clients, rest, n)
        # Guiding begins in the round that `first` names: none by those of rounds before.
        soon = server[ROUND] + 1 >= first
        anchors = gather(server[ANCHORS], uploads[ANCHORS]) * soon
        return {**after, ANCHORS: anchors, ROUND: server[ROUND] + 1}, kept

    made = _with(method, context, (ANCHORS, ROUND), aggregate, start)
    return replace(made, passes=(*others, _remembering(last), Sweep(look, end)))


def _with(
    method: Method, context: BuildContext, keys: tuple[str, ...], aggregate: Aggregate, start: Start
) -> Method:
    """The method whose server keeps ``keys`` and sends its anchors."""
    network, inner = context.network, method.send

    def init(variables: Tree) -> Told:
        server, client = method.init(variables)
        if ANCHORS in server:
            raise FedloomError("anchors: there are some already. Allowed: to add them once")
        _whole(network, client, server)
        anchors = start(network, variables, context.classes)
        new = {ANCHORS: anchors, ROUND: anchors.new_ones(())}
        return {**server, **{key: new[key] for key in keys}}, client

    def send(server: Tree) -> Tree:
        sent = inner(server) if inner else {k: v for k, v in server.items() if k != ROUND}
        return {**sent, ANCHORS: server[ANCHORS]}

    def keeping(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> Told:
        after, kept = aggregate(server, clients, uploads, n)
        return {**after, **{key: server[key] for key in keys if key not in after}}, kept

    def admit(counts: Tensor, clients: Tensor) -> None:
        if method.admit:
            method.admit(counts, clients)
        _check_held(counts[clients].sum(0))

    marked = Averaging(keeping) if isinstance(aggregate, Averaging) else keeping
    return replace(method, init=init, aggregate=marked, send=send, admit=admit)


def _check_held(counts: Tensor) -> None:
    """Raise `FedloomError` for a class without a training sample, by counts [classes]."""
    for label in (counts == 0).nonzero()[:1, 0].tolist():
        raise FedloomError(
            f"anchors: no client that takes part has a training sample of class {label}, so it has "
            "no anchor. Allowed: a partition in which every class is held"
        )


def _remembering(pass_: Pass) -> Pass:
    """The pass, whose client keeps what it trained."""

    def end(server: Tree, client: Tree, work: Tree) -> Told:
        if "frozen" not in work:
            raise FedloomError(
                "anchors: the method trains two models. Allowed: one that trains one"
            )
        kept, upload = pass_.end(server, client, work)
        params = {**work["frozen"], **work["params"]}
        params.pop(PERSONAL_PARAMS, None)
        return {**kept, TRAINED: {"params": params, "buffers": work["buffers"]}}, upload

    return replace(pass_, end=end)


def _whole(network: Network, client: Tree, server: Tree) -> Tree:
    """The server's model, completed by the client's own weights."""
    model = {kind: {**client.get(kind, {}), **server.get(kind, {})} for kind in KINDS}
    if len(model["params"]) < len(network.names["params"]):
        raise FedloomError(
            "anchors: neither the server nor the client has a whole model. Allowed: a method with "
            "a shared model or one of the client's own"
        )
    return model
