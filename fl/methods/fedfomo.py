"""FedFomo: each client moves towards those models of others that lower its loss on validation data.

Zhang, Sapra, Fidler, Yeung, Alvarez. Personalized Federated Learning with First Order Model
Optimization. ICLR 2021. arXiv:2012.08565.

Family: mixture of clients. Exchanged: up a model, down several. Local: model, gains. Key: `models`.

Before it trains, a client gets models that others sent in the last round. These, and the model that
it trained itself, have the gains g_j = (L(ref) - L(w_j)) / ||w_j - ref||, with its mean validation
loss L. It goes on from ref + sum_j a_j (w_j - ref), with a_j the positive gains divided by their
sum. The server sends the models with the largest sums of earlier gains, or, with a probability that
falls over rounds, random ones. As in the authors' code (NVlabs/FedFomo, fe04f66), whose values are
the defaults, ``ref`` is the model with which the client's last training began. That code divides
gains by the size of their total before it sums them, measures distances by absolute values, and
scores after one more mixture; here, the model that was trained last is scored.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Method,
    NonNegative,
    Pass,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Share,
    Sweep,
    Tree,
    Variables,
    all_weights,
    declare,
    keyed,
    recipe,
    rng,
    select,
    single_pass,
    trees,
)
from fl.blocks.candidate_models import epsilon_greedy, gain_step, gains_by_distance, losses_by_model
from fl.blocks.exchange import send_all_but


class FedFomoServer(RecipeServer):
    """State of the server; what it adds stays on the server.

    Attributes:
        models: Variables that every client uploaded last, stacked: leaves [clients, ...].
        uploaded: Which clients have uploaded, bool [clients].
        affinity: Sum of the gains of client i from the model of client j, [clients, clients].
        key: Key of the random models that are sent, int64 [].
        round: Number of finished rounds, int64 [].
    """

    models: Variables
    uploaded: Tensor
    affinity: Tensor
    key: Tensor
    round: Tensor


class FedFomoClient(RecipeClient):
    """State of a client; its ``payload`` is `SentModels`.

    Attributes:
        start: Variables with which its last training began.
        gains: Gains from the models that it received last, [M].
    """

    start: Variables
    gains: Tensor


class SentModels(TypedDict):
    """Models that the server sends to one client.

    Attributes:
        models: Variables of M other clients, stacked: leaves [M, ...].
        chosen: Their ids, int64 [M].
        exists: Which of them are models of clients, bool [M].
    """

    models: Variables
    chosen: Tensor
    exists: Tensor


class FedFomoUpload(Variables):
    """Upload of a client.

    Attributes:
        chosen: As in `SentModels`.
        gains: As in `FedFomoClient`.
    """

    chosen: Tensor
    gains: Tensor


@declare("personal", title="FedFomo", needs=("val",))
class FedFomo:
    """Local training from mixtures that clients choose by validation data.

    Attributes:
        models: Number of models that a client gets in a round.
        epsilon: Probability of a random model in place of the best one, in round 1.
        epsilon_decay: Number by which this probability falls in each round.
        reference: Model that others are compared with: the one with which the client's last
            training began (`start`) or ended (`trained`, as in FL-bench).
    """

    models: Count = 8
    epsilon: Share = 0.3
    epsilon_decay: NonNegative = 0.05
    reference: Literal["start", "trained"] = "start"

    def build(self, context: BuildContext) -> Method:
        """Return Local that begins each round with a mixture, equations 3 and 4."""
        base = recipe(context, local=all_weights)
        steps = FedFomoSteps(self, base, context)
        local: Pass = single_pass(base)
        return Method(
            steps.init,
            (Sweep(steps.look, steps.mix, split="val"), replace(local, end=steps.end)),
            steps.aggregate,
            base.views,
            send=send_all_but("models", "uploaded", "affinity", "key", "round"),
            payload=steps.payload,
        )


@dataclass(frozen=True, eq=False)
class FedFomoSteps:
    """Functions of FedFomo's passes, and what the server does.

    Attributes:
        options: The keys of the method.
        base: Local training.
        context: The context in which the method is built.
    """

    options: FedFomo
    base: Recipe
    context: BuildContext

    @property
    def count(self) -> int:
        """Number of models that a client gets in a round."""
        return min(self.options.models, self.context.clients - 1)

    def init(self, variables: Variables) -> tuple[FedFomoServer, FedFomoClient]:
        """Return Local's states; every client's last upload is the initial model."""
        server, client = self.base.init(variables)
        leaf = trees.leaves(variables["params"])[0]
        key = torch.tensor(rng.torch_seed(self.context.seed, "fedfomo"), device=leaf.device)
        first, zero = select(variables, all_weights), torch.zeros_like(key)
        return {
            **server,
            "models": trees.repeat(first, self.context.clients),
            "uploaded": zero.repeat(self.context.clients) > 0,
            "affinity": leaf.new_zeros((self.context.clients, self.context.clients)),
            "key": key,
            "round": zero,
        }, {**client, "start": first, "gains": leaf.new_zeros(self.count)}

    def payload(self, server: FedFomoServer, client: FedFomoClient) -> SentModels:
        """Return the models for one client: mostly those from which it gained most."""
        ids = torch.arange(self.context.clients, device=client["id"].device)
        is_available = server["uploaded"] & (ids != client["id"])
        epsilon = (self.options.epsilon - self.options.epsilon_decay * server["round"]).clamp(min=0)
        key = keyed.derive_keys(server["key"] + server["round"], 0) + client["id"]
        affinity = trees.rows(server["affinity"], client["id"])
        chosen, exists = epsilon_greedy(affinity, is_available, self.count, epsilon, key)
        return {
            "models": trees.take(server["models"], chosen),
            "chosen": chosen,
            "exists": exists,
        }

    def models_of(self, client: FedFomoClient) -> tuple[Variables, list[Variables]]:
        """Return the reference, and the client's own model followed by those of others."""
        own_model = select(client, all_weights)
        received = [trees.take(client["payload"]["models"], number) for number in range(self.count)]
        reference = client["start"] if self.options.reference == "start" else own_model
        return reference, [own_model, *received]

    def look(
        self, server: FedFomoServer, client: FedFomoClient, upload: Tree, batch: Batch
    ) -> Tree:
        """Return the losses of all models on validation samples."""
        reference, models = self.models_of(client)
        values = losses_by_model(self.context.network, (reference, *models), batch)
        weight = batch["weight"].to(values.dtype)
        return {"losses": weight @ values, "count": weight.sum()}

    def mix(
        self, server: FedFomoServer, client: FedFomoClient, upload: Tree, totals: Tree
    ) -> tuple[FedFomoClient, Tree]:
        """Begin training at w + sum_n gain_n (w_n - w), equations 3 and 4."""
        reference, models = self.models_of(client)
        losses = totals["losses"] / totals["count"].clamp(min=1)
        gains = gains_by_distance(losses, reference, models)
        received_gains = gains[1:] * client["payload"]["exists"]
        begin = gain_step(reference, models, torch.cat([gains[:1], received_gains]))
        return {**client, **begin, "start": begin, "gains": received_gains}, {}

    def end(
        self, server: FedFomoServer, client: FedFomoClient, work: RecipeWork
    ) -> tuple[FedFomoClient, FedFomoUpload]:
        """Upload the trained model, and the gains."""
        client, _ = single_pass(self.base).end(server, client, work)
        chosen, gains = client["payload"]["chosen"], client["gains"]
        return client, {**select(client, all_weights), "chosen": chosen, "gains": gains}

    def aggregate(
        self, server: FedFomoServer, clients: FedFomoClient, uploads: FedFomoUpload, n: Tensor
    ) -> tuple[FedFomoServer, FedFomoClient]:
        """Keep the uploads, and add up the gains."""
        ids = clients["id"]
        models = trees.replace_clients(server["models"], ids, select(uploads, all_weights))
        uploaded = torch.zeros_like(server["uploaded"]).index_fill(0, ids, True)
        pairs = ids[:, None].expand_as(uploads["chosen"]), uploads["chosen"]
        affinity = server["affinity"].index_put(pairs, uploads["gains"], accumulate=True)
        return {
            **server,
            "models": models,
            "uploaded": uploaded,
            "affinity": affinity,
            "round": server["round"] + 1,
        }, clients
