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

from collections.abc import Mapping
from dataclasses import replace

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
    Sampling,
    Tree,
    all_weights,
    declare,
    recipe,
    select,
    single_pass,
    trees,
)
from fl.blocks.layer_weights import weights_of_layers
from fl.blocks.participation import ROUNDS, with_participation


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
        """U = w_k + (w - w_k) A for weights of the top layers, u = w for all others, equation 4."""
        network = context.network
        top = weights_of_layers(network, self.layers)
        names = [name for name in network.names["params"] if name in top]
        base = with_participation(recipe(context))
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            local_weights = {name: variables["params"][name] for name in names}
            return server, {
                **client,
                "own": local_weights,
                "shares": trees.apply(torch.ones_like, local_weights),
            }

        def begin_shares(server: Tree, client: Tree) -> Tree:
            return {"params": client["shares"], "own": client["own"]}

        def loss_of_shares(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            params = start(server["params"], work["own"], work["params"])
            output = network.train(params, server["buffers"], batch["x"], key=batch.get("key"))
            return context.task.loss(output.outputs, batch), {}

        def update_shares(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            shares = trees.apply(lambda a, g: (a - self.eta * g).clamp(0, 1), work["params"], grads)
            return {**work, "params": shares}

        def end_if(is_due: Tensor, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            shares = trees.apply(
                lambda a, old: torch.where(is_due, a, old), work["params"], client["shares"]
            )
            return {**client, "shares": shares}, {}

        def end_start(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            return end_if(client[ROUNDS] == 1, client, work)

        def end_later(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            return end_if(client[ROUNDS] > 1, client, work)

        def begin(server: Tree, client: Tree) -> Tree:
            return local.begin(personal(server, client), client)

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client_state, upload = local.end(server, client, work)
            local_weights = {name: upload["params"][name] for name in names}
            return {**client_state, "own": local_weights}, upload

        def personal(server: Tree, client: Tree | None) -> Tree:
            client = client or {}
            has_trained = client[ROUNDS] > 0
            local_weights = {
                name: torch.where(has_trained, tensor, server["params"][name])
                for name, tensor in client["own"].items()
            }
            model = select(server, all_weights)
            return {**model, "params": start(server["params"], local_weights, client["shares"])}

        # With all clients in every round, the second round of each is round 2.
        whole = context.training.participants(context.participants) == context.participants
        first = Sampling(
            epochs=self.start_epochs,
            is_active=lambda round_: round_ == 2 if whole else round_ > 1,
        )
        later = Sampling(epochs=self.epochs, is_active=lambda round_: round_ > 2)
        shares = Pass(begin_shares, loss_of_shares, update_shares, end_start, first)
        passes = (
            shares,
            replace(shares, end=end_later, sampling=later),
            replace(local, begin=begin, end=end),
        )
        return replace(base, init=init, passes=passes, views={"personal": personal})


def start(
    shared: Tree, local_weights: Mapping[str, Tensor], shares: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the weights with which a client begins: mixtures, or shared without local ones."""
    mixed = {name: w + (shared[name] - w) * shares[name] for name, w in local_weights.items()}
    return {**shared, **mixed}
