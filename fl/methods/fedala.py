"""FedALA: each client begins a round with its own mixture of its last model and the shared one.

Zhang, Hua, Wang, Song, Xue, Ma, Guan. FedALA: Adaptive Local Aggregation for Personalized Federated
Learning. AAAI 2023. arXiv:2212.01197.

Family: personal model. Exchanged: model. Local: head, a share for each of its weights. Key: `eta`.

Every weight of the top layers has a share A of its own, which begins at 1, the shared weight.
Before a client trains, A takes gradient steps on the client's batches; the body is always the
shared one. In the paper a client's first such phase, in its second round, goes on until the loss is
steady, and later ones take one epoch; here the first takes ``start_epochs``. The paper uses a
random part of a client's samples (80 %) for A, which saves time; here all are used. Clients are
scored with the A of their last round; the authors' code (in TsingZ0/PFLlib, d832e76) lets all
clients adapt A before every evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Method,
    NonNegative,
    Pass,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Sampling,
    Tree,
    Variables,
    Weights,
    declare,
    recipe,
    single_pass,
    trees,
)
from fl.blocks.layer_weights import weights_of_layers
from fl.blocks.participation import with_participation


class FedALAClient(RecipeClient):
    """State of a client.

    Attributes:
        own: Weights w_k of its top layers after its last round, by name.
        shares: Share A of each of these weights, in [0, 1], of the same names and shapes.
    """

    own: Weights
    shares: Weights


class SharesWork(TypedDict):
    """State of the pass that adapts the shares.

    Attributes:
        params: The shares A, as in `FedALAClient`; the loss is differentiated by them.
        own: As in `FedALAClient`.
    """

    params: Weights
    own: Weights


@declare("personal", title="FedALA", tasks=("classification", "regression"))
class FedALA:
    """FedAvg whose clients begin with a mixture of their own.

    Attributes:
        eta: Learning rate of the shares A; 0 is FedAvg.
        layers: Names of the layers whose weights are mixed; null: the head.
        start_epochs: Epochs of A in a client's second round.
        epochs: Epochs of A in its later rounds.
    """

    eta: NonNegative = 1.0
    layers: tuple[str, ...] | None = None
    start_epochs: Count = 10
    epochs: Count = 1

    def build(self, context: BuildContext) -> Method:
        """FedAvg after two passes that adapt A, of which a client uses one in a round."""
        base = with_participation(recipe(context))
        network = context.network
        layers = weights_of_layers(network, self.layers)
        names = tuple(name for name in network.names["params"] if name in layers)
        steps = FedALASteps(base, context, names, self.eta)
        # With all clients in every round, the second round of each is round 2.
        has_all = context.training.participants(context.participants) == context.participants
        second_round = Sampling(
            epochs=self.start_epochs,
            is_active=lambda round_: round_ == 2 if has_all else round_ > 1,
        )
        later_rounds = Sampling(epochs=self.epochs, is_active=lambda round_: round_ > 2)
        shares = Pass(
            steps.begin_shares,
            steps.loss_of_shares,
            steps.update_shares,
            steps.end_second,
            second_round,
        )
        passes = (
            shares,
            replace(shares, end=steps.end_later, sampling=later_rounds),
            replace(single_pass(base), begin=steps.begin, end=steps.end),
        )
        return replace(base, init=steps.init, passes=passes, views={"personal": steps.personal})


@dataclass(frozen=True, eq=False)
class FedALASteps:
    """Functions of the passes of FedALA.

    Attributes:
        base: FedAvg whose clients count their rounds.
        context: The context in which the method is built.
        names: Names of the weights of the top layers.
        eta: Learning rate of the shares.
    """

    base: Recipe
    context: BuildContext
    names: tuple[str, ...]
    eta: float

    def init(self, variables: Variables) -> tuple[RecipeServer, FedALAClient]:
        """Return FedAvg's states; a client's shares are 1."""
        server, client = self.base.init(variables)
        top = {name: variables["params"][name] for name in self.names}
        return server, {**client, "own": top, "shares": trees.apply(torch.ones_like, top)}

    def begin_shares(self, server: RecipeServer, client: FedALAClient) -> SharesWork:
        """Return the state of a pass over A."""
        return {"params": client["shares"], "own": client["own"]}

    def loss_of_shares(
        self, server: RecipeServer, work: SharesWork, batch: Batch
    ) -> tuple[Tensor, Tree]:
        """Return the loss of the mixture, to be differentiated by A."""
        params = mixture(server["params"], work["own"], work["params"])
        output = self.context.network.train(
            params, server["buffers"], batch["x"], key=batch.get("key")
        )
        return self.context.task.loss(output.outputs, batch), {}

    def update_shares(
        self, server: RecipeServer, work: SharesWork, grads: Weights, aux: Tree, lr: Rate
    ) -> SharesWork:
        """Return A <- A - eta dL/dA, cut to [0, 1]."""
        shares = trees.apply(lambda a, g: (a - self.eta * g).clamp(0, 1), work["params"], grads)
        return {**work, "params": shares}

    def end_second(
        self, server: RecipeServer, client: FedALAClient, work: SharesWork
    ) -> tuple[FedALAClient, Tree]:
        """Keep the shares of a client in its second round."""
        return keep_shares(client["rounds"] == 1, client, work), {}

    def end_later(
        self, server: RecipeServer, client: FedALAClient, work: SharesWork
    ) -> tuple[FedALAClient, Tree]:
        """Keep the shares of a client after its second round."""
        return keep_shares(client["rounds"] > 1, client, work), {}

    def begin(self, server: RecipeServer, client: FedALAClient) -> RecipeWork:
        """Begin local training at the mixture."""
        return single_pass(self.base).begin(self.personal(server, client), client)

    def end(
        self, server: RecipeServer, client: FedALAClient, work: RecipeWork
    ) -> tuple[FedALAClient, RecipeUpload]:
        """End local training, and keep the weights of the top layers."""
        client, upload = single_pass(self.base).end(server, client, work)
        top = {name: upload["params"][name] for name in self.names}
        return {**client, "own": top}, upload

    def personal(self, server: RecipeServer, client: FedALAClient) -> Variables:
        """Return the client's mixture; the server's model before its first round has ended."""
        has_trained = client["rounds"] > 0
        last = {
            name: torch.where(has_trained, tensor, server["params"][name])
            for name, tensor in client["own"].items()
        }
        params = mixture(server["params"], last, client["shares"])
        return {"params": params, "buffers": server["buffers"]}


def mixture(shared: Weights, last: Weights, shares: Weights) -> Weights:
    """Return w_k + (w - w_k) A for weights of the top layers, w for all others (equation 4)."""
    mixed = {name: w + (shared[name] - w) * shares[name] for name, w in last.items()}
    return {**shared, **mixed}


def keep_shares(is_due: Tensor, client: FedALAClient, work: SharesWork) -> FedALAClient:
    """Return the client's state with the new shares if they are due, bool []."""
    shares = trees.apply(
        lambda a, old: torch.where(is_due, a, old), work["params"], client["shares"]
    )
    return {**client, "shares": shares}
