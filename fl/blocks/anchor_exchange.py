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
from fl.blocks.anchors import feature_sums, local_anchors, zero_anchors

ANCHORS = "anchors"
"""In the server's tree, [classes, features]; zero for a class without an anchor."""
ANCHOR_ROUND, TRAINED_MODEL = "anchors' round", "anchors' model"
"""In the server's tree, the round's number; in a client's, for a moment, what it just trained."""

AnchorUpdate = Callable[[Tensor, Tree], Tensor]
"""(anchors before, what clients send, see `fl.blocks.anchors.local_anchors`) -> anchors."""
InitialAnchors = Callable[[Network, Tree, int], Tensor]
"""(network, first variables, classes) -> what the server has before there are anchors."""
TreePair = tuple[Tree, Tree]


def anchors_before_training(
    method: Method, context: BuildContext, gather: AnchorUpdate, first: int
) -> Method:
    """The method, with a phase before each round that renews the anchors.

    The anchors are of the model that is sent, completed by the client's own weights.

    Args:
        gather: Makes the anchors of all clients from what they send.
        first: The first round with that phase.
    """
    network, classes = context.network, context.classes

    def look(server: Tree, client: Tree, sent: Tree, batch: Batch) -> Tree:
        return feature_sums(network, _complete_model(network, client, server), batch, classes)

    def end(server: Tree, client: Tree, sent: Tree, seen: Tree) -> TreePair:
        return dict(client), local_anchors(seen)

    def renew(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> TreePair:
        anchors = gather(server[ANCHORS], uploads)
        return {**server, ANCHORS: anchors}, dict(clients)

    made = _with_anchors(method, context, (ANCHORS,), method.aggregate, zero_anchors)
    before = Phase((Sweep(look, end),), renew, due=lambda round_: round_ >= first, send=made.send)
    return replace(made, before=(*method.before, before))


def anchors_after_training(
    method: Method,
    context: BuildContext,
    gather: AnchorUpdate,
    first: int = 1,
    start: InitialAnchors = zero_anchors,
) -> Method:
    """The method, whose clients send the anchors of what they just trained with the rest.

    These anchors guide in the next round.

    Args:
        gather: As in `anchors_before_training`.
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
        return feature_sums(network, client[TRAINED_MODEL], batch, classes)

    def end(server: Tree, client: Tree, sent: Tree, seen: Tree) -> TreePair:
        kept = {key: leaf for key, leaf in client.items() if key != TRAINED_MODEL}
        return kept, {**sent, ANCHORS: local_anchors(seen)}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> TreePair:
        rest = {key: leaf for key, leaf in uploads.items() if key != ANCHORS}
        after, kept = method.aggregate(server, clients, rest, n)
        # Guiding begins in the round that `first` names: none by those of rounds before.
        soon = server[ANCHOR_ROUND] + 1 >= first
        anchors = gather(server[ANCHORS], uploads[ANCHORS]) * soon
        return {**after, ANCHORS: anchors, ANCHOR_ROUND: server[ANCHOR_ROUND] + 1}, kept

    made = _with_anchors(method, context, (ANCHORS, ANCHOR_ROUND), aggregate, start)
    return replace(made, passes=(*others, _keep_trained_model(last), Sweep(look, end)))


def _with_anchors(
    method: Method,
    context: BuildContext,
    keys: tuple[str, ...],
    aggregate: Aggregate,
    start: InitialAnchors,
) -> Method:
    """The method whose server keeps ``keys`` and sends its anchors."""
    network, inner = context.network, method.send

    def init(variables: Tree) -> TreePair:
        server, client = method.init(variables)
        if ANCHORS in server:
            raise FedloomError("anchors: there are some already. Allowed: to add them once")
        _complete_model(network, client, server)
        anchors = start(network, variables, context.classes)
        new = {ANCHORS: anchors, ANCHOR_ROUND: anchors.new_ones(())}
        return {**server, **{key: new[key] for key in keys}}, client

    def send(server: Tree) -> Tree:
        sent = inner(server) if inner else {k: v for k, v in server.items() if k != ANCHOR_ROUND}
        return {**sent, ANCHORS: server[ANCHORS]}

    def keeping(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> TreePair:
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


def _keep_trained_model(pass_: Pass) -> Pass:
    """The pass, whose client keeps what it trained."""

    def end(server: Tree, client: Tree, work: Tree) -> TreePair:
        if "frozen" not in work:
            raise FedloomError(
                "anchors: the method trains two models. Allowed: one that trains one"
            )
        kept, upload = pass_.end(server, client, work)
        params = {**work["frozen"], **work["params"]}
        params.pop(PERSONAL_PARAMS, None)
        return {**kept, TRAINED_MODEL: {"params": params, "buffers": work["buffers"]}}, upload

    return replace(pass_, end=end)


def _complete_model(network: Network, client: Tree, server: Tree) -> Tree:
    """The server's model, completed by the client's own weights."""
    model = {kind: {**client.get(kind, {}), **server.get(kind, {})} for kind in KINDS}
    if len(model["params"]) < len(network.names["params"]):
        raise FedloomError(
            "anchors: neither the server nor the client has a whole model. Allowed: a method with "
            "a shared model or one of the client's own"
        )
    return model
