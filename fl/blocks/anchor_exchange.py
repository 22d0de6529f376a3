"""Methods whose clients share anchors, the mean feature of every class (`fl.blocks.anchors`).

Anchors reach the server in one of two ways: in a phase of their own before clients train, or with
the uploads that follow training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from fl.api import (
    PERSONAL_PARAMS,
    SHARED_PARAMS,
    Aggregate,
    Batch,
    BuildContext,
    FedloomError,
    Method,
    Network,
    Output,
    Pass,
    Phase,
    RecipeServer,
    Sweep,
    Tree,
    Variables,
    WeightedAverage,
)
from fl.blocks.anchors import Anchors, features_of, local_anchors, sums_by_class, zero_anchors


class AnchorServer(RecipeServer):
    """State of the server of a method with anchors.

    Attributes:
        anchors: Anchors of all classes, [C, d]; zeros for a class without an anchor.
    """

    anchors: Tensor


ANCHOR_ROUND, TRAINED_MODEL = "anchors' round", "anchors' model"
"""Keys: the round's number in the server's state, and the trained model in a client's."""

AnchorUpdate = Callable[[Tensor, Anchors], Tensor]
"""(previous anchors, uploads as `fl.blocks.anchors.local_anchors` makes them) -> new anchors."""
InitialAnchors = Callable[[Network, Variables, int], Tensor]
"""(network, initial variables, classes) -> the server's anchors at the beginning."""
AnyMethod = TypeVar("AnyMethod", bound=Method)
TreePair = tuple[Tree, Tree]


def anchors_before_training(
    method: AnyMethod, context: BuildContext, update: AnchorUpdate, first: int
) -> AnyMethod:
    """Add a phase that renews the anchors before each round.

    Anchors are computed with the model that clients receive, completed by the client's own weights.

    Args:
        method: The method to extend.
        context: The context in which the method was built.
        update: A function that makes the anchors of all clients from their uploads.
        first: The first round with that phase.
    """
    network, classes = context.network, context.classes

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        return sums_by_class(network, _complete_model(network, client, server), batch, classes)

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> TreePair:
        return client, local_anchors(totals)

    def renew(server: AnchorServer, clients: Tree, uploads: Anchors, n: Tensor) -> TreePair:
        anchors = update(server["anchors"], uploads)
        return {**server, "anchors": anchors}, clients

    anchored = _with_anchors(method, context, ("anchors",), method.aggregate, zero_anchors)
    anchor_phase = Phase(
        (Sweep(look, end),), renew, is_active=lambda round_: round_ >= first, send=anchored.send
    )
    return replace(anchored, earlier_phases=(*method.earlier_phases, anchor_phase))


def anchors_after_training(
    method: AnyMethod,
    context: BuildContext,
    update: AnchorUpdate,
    first: int = 1,
    initial: InitialAnchors = zero_anchors,
) -> AnyMethod:
    """Let clients upload the anchors of the model that they just trained.

    These anchors guide training in the next round.

    Args:
        method: The method to extend.
        context: The context in which the method was built.
        update: A function that makes the anchors of all clients from their uploads.
        first: The first round in which anchors guide.
        initial: A function that makes the server's anchors at the beginning.

    Raises:
        FedloomError: For a method whose rounds do not end with training.
    """
    *earlier_passes, last_pass = method.passes
    if isinstance(last_pass, Sweep):
        raise FedloomError(
            "anchors: the method already ends a round with a sweep over its samples",
            advice="choose a method whose rounds end with training",
        )

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> TreePair:
        model_uploads = {key: leaf for key, leaf in uploads.items() if key != "anchors"}
        server_state, client_states = method.aggregate(server, clients, model_uploads, n)
        # Anchors guide from the round `first` on, so earlier ones are zero.
        is_guided = server[ANCHOR_ROUND] + 1 >= first
        anchors = update(server["anchors"], uploads["anchors"]) * is_guided
        return {
            **server_state,
            "anchors": anchors,
            ANCHOR_ROUND: server[ANCHOR_ROUND] + 1,
        }, client_states

    anchored = _with_anchors(method, context, ("anchors", ANCHOR_ROUND), aggregate, initial)
    sweep = class_means_sweep(context)
    return replace(anchored, passes=(*earlier_passes, keep_trained_model(last_pass), sweep))


def class_means_sweep(
    context: BuildContext, quantity: Callable[[Output], Tensor] = features_of
) -> Sweep:
    """Return a sweep that adds means by class of the trained model to an upload (``anchors``).

    The model is in evaluation mode. The sweep follows a pass of `keep_trained_model`.

    Args:
        context: The context in which the method is built.
        quantity: Function from the model's output to what is averaged, [b, d].
    """
    network, classes = context.network, context.classes

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        return sums_by_class(network, client[TRAINED_MODEL], batch, classes, quantity)

    def end(server: Tree, client: Tree, upload: Tree, totals: Tree) -> TreePair:
        client_state = {key: leaf for key, leaf in client.items() if key != TRAINED_MODEL}
        return client_state, {**upload, "anchors": local_anchors(totals)}

    return Sweep(look, end)


def _with_anchors(
    method: AnyMethod,
    context: BuildContext,
    keys: tuple[str, ...],
    aggregate: Aggregate,
    initial: InitialAnchors,
) -> AnyMethod:
    """Return the method with a server that keeps ``keys`` and sends its anchors."""
    steps = AnchorSteps(method, context, keys, aggregate, initial)
    averaging = isinstance(aggregate, WeightedAverage)
    return replace(
        method,
        init=steps.init,
        aggregate=WeightedAverage(steps.keep_anchors) if averaging else steps.keep_anchors,
        send=steps.send,
        check_clients=steps.admit,
    )


@dataclass(frozen=True, eq=False)
class AnchorSteps:
    """Functions of a method whose server keeps and sends anchors.

    Attributes:
        method: The method to extend.
        context: The context in which the method is built.
        keys: Keys that the server's state gains.
        inner_aggregate: The function that aggregates the uploads.
        initial: A function that makes the first anchors.
    """

    method: Method
    context: BuildContext
    keys: tuple[str, ...]
    inner_aggregate: Aggregate
    initial: InitialAnchors

    def init(self, variables: Variables) -> TreePair:
        """Return the method's states, and the first anchors."""
        server, client = self.method.init(variables)
        if "anchors" in server:
            raise FedloomError("anchors: the method has anchors already", advice="add them once")
        _complete_model(self.context.network, client, server)
        anchors = self.initial(self.context.network, variables, self.context.classes)
        new = {"anchors": anchors, ANCHOR_ROUND: anchors.new_ones(())}
        return {**server, **{key: new[key] for key in self.keys}}, client

    def send(self, server: Tree) -> Tree:
        """Send what the method sends, and the anchors."""
        download = (
            self.method.send(server)
            if self.method.send
            else {k: v for k, v in server.items() if k != ANCHOR_ROUND}
        )
        return {**download, "anchors": server["anchors"]}

    def keep_anchors(self, server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> TreePair:
        """Aggregate, and keep what the method does not know of."""
        server_state, client_states = self.inner_aggregate(server, clients, uploads, n)
        missing = {key: server[key] for key in self.keys if key not in server_state}
        return {**server_state, **missing}, client_states

    def admit(self, counts: Tensor, clients: Tensor) -> None:
        """Check the clients' samples, as the method does, and that every class has some."""
        if self.method.check_clients:
            self.method.check_clients(counts, clients)
        _check_held(counts[clients].sum(0))


def _check_held(counts: Tensor) -> None:
    """Raise `FedloomError` if counts [classes] are zero for some class."""
    for label in (counts == 0).nonzero()[:1, 0].tolist():
        raise FedloomError(
            f"anchors: no participating client has a training sample of class {label}, so the "
            "class has no anchor",
            advice="choose a partition in which clients hold every class",
        )


def keep_trained_model(pass_: Pass) -> Pass:
    """Return the pass with an end that keeps the trained model in the client's tree."""

    def end(server: Tree, client: Tree, work: Tree) -> TreePair:
        if "frozen" not in work:
            raise FedloomError(
                "anchors: the method trains two models", advice="choose a method that trains one"
            )
        client_state, upload = pass_.end(server, client, work)
        params = {**work["frozen"], **work["params"]}
        for added in (PERSONAL_PARAMS, SHARED_PARAMS):
            params.pop(added, None)
        return {
            **client_state,
            TRAINED_MODEL: {"params": params, "buffers": work["buffers"]},
        }, upload

    return replace(pass_, end=end)


def _complete_model(network: Network, client: Tree, server: Tree) -> Variables:
    """Return the server's model, completed by the client's own weights."""
    model: Variables = {
        "params": {**client.get("params", {}), **server.get("params", {})},
        "buffers": {**client.get("buffers", {}), **server.get("buffers", {})},
    }
    if len(model["params"]) < len(network.names["params"]):
        raise FedloomError(
            "anchors: neither the server nor the client has a complete model",
            advice="choose a method with a complete shared or personal model",
        )
    return model
