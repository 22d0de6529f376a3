"""FedDBE: each client keeps the mean of its features, so that the shared ones need not hold it.

Zhang, Hua, Cao, Wang, Song, Xue, Ma, Guan. Eliminating Domain Bias for Federated Learning in
Representation Space. NeurIPS 2023. arXiv:2311.14975.

Family: personal layers. Exchanged: model; before round 1, the mean feature. Local: mean feature.
Key: `kappa`.

Before round 1, all clients train once as in FedAvg and send the mean of their features; the models
are thrown away. The mean over clients, weighted by samples, stays fixed: it is what the features of
a batch are held to. A trained vector of the client's own is added to the features before the head.
The client's mean is over its training samples after that training; in the authors' code
(TsingZ0/DBE, 193f4355) it is the last of a running mean over its batches.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from torch import Tensor

from fl.api import (
    AdaptiveTerm,
    Batch,
    BuildContext,
    Forward,
    Method,
    Network,
    NonNegative,
    Phase,
    Predictor,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Share,
    Tree,
    Variables,
    Weights,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.first_round import mean_before_round_1
from fl.blocks.linear_layers import feature_width, head_outputs, head_parameters

FEATURE_MEAN = "feature_mean"
"""Name of the term whose state is the running mean of a client's batches."""


class FedDBEServer(RecipeServer):
    """State of the server.

    Attributes:
        feature_mean: Mean m of features over all clients, [d].
    """

    feature_mean: Tensor


class ClientBias(TypedDict):
    """Parameter of a client's own.

    Attributes:
        bias: Vector z_k that is added to features, [d].
    """

    bias: Tensor


class FedDBEModel(Variables):
    """Weights that are evaluated, with the client's vector."""

    personal_params: ClientBias


@declare("personal", title="FedDBE", tasks=("classification", "regression"))
class FedDBE:
    """FedAvg with a mean of features that each client keeps.

    Attributes:
        kappa: Weight of the distance between the batches' mean and the clients' mean (the authors'
            script: 50).
        mu: Share of the newest batch in the running mean of a round's batches (the script: 1).
    """

    kappa: NonNegative = 50.0
    mu: Share = 1.0

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with CE(h(f(x) + z_k), y) + kappa mean_d (m - z)^2 / 2, equations 6, 8."""
        network = context.network
        regulariser = AdaptiveTerm(
            FEATURE_MEAN,
            lambda variables: {"mean": zero_mean(network, variables)},
            self.distance,
            lambda _, new: new,
        )
        base = recipe(
            context,
            terms=(biased_loss, regulariser),
            personal_params=lambda variables: {"bias": zero_mean(network, variables)},
        )
        local = single_pass(base)

        def init(variables: Variables) -> tuple[FedDBEServer, RecipeClient]:
            server, client = base.init(variables)
            return {**server, "feature_mean": zero_mean(network, variables)}, client

        def begin(server: FedDBEServer, client: RecipeClient) -> RecipeWork:
            work = local.begin(server, client)
            zero_state = {"mean": 0 * work["terms"][FEATURE_MEAN]["mean"]}
            return {**work, "terms": {**work["terms"], FEATURE_MEAN: zero_state}}

        def predict(model: FedDBEModel, memory: Tree, x: Tensor) -> Tensor:
            features = network.eval(model["params"], model["buffers"], x).features
            return biased_outputs(
                network, model["params"], features, model["personal_params"]["bias"]
            )

        return replace(
            base,
            init=init,
            passes=(replace(local, begin=begin),),
            earlier_phases=(first_means(context),),
            views={"personal": Predictor(personal, predict, is_per_sample=True)},
        )

    def distance(self, forward: Forward, state: Tree) -> tuple[Tensor, Tree]:
        """Return kappa mean_d (m - z)^2 / 2, with z the running mean of the round's batches."""
        server: FedDBEServer = forward.server
        newest = weighted_mean(forward.output.features.flatten(1).T, forward.batch)
        mean = (1 - self.mu) * state["mean"] + self.mu * newest
        square = (mean - server["feature_mean"]).square().mean()
        return self.kappa * square / 2, {"mean": mean.detach()}


def zero_mean(network: Network, variables: Variables) -> Tensor:
    """Return zeros for the mean of features, [d]."""
    leaf = trees.leaves(variables["params"])[0]
    return leaf.new_zeros(feature_width(network, variables["params"]))


def biased_outputs(network: Network, params: Weights, features: Tensor, bias: Tensor) -> Tensor:
    """Return the outputs of the head for features to which z_k, [d], is added."""
    return head_outputs(head_parameters(network, params), features.flatten(1) + bias)


def biased_loss(forward: Forward) -> Tensor:
    """Return the task's loss of `biased_outputs`, a loss term."""
    features, bias = forward.output.features, forward.personal_params["bias"]
    outputs = biased_outputs(forward.network, forward.params, features, bias)
    return forward.task.loss(outputs, forward.batch)


def personal(server: FedDBEServer, client: RecipeClient) -> FedDBEModel:
    """Return the shared model with the client's vector, as a view."""
    return {**shared_model(server, None), "personal_params": client["personal_params"]}


def first_means(context: BuildContext) -> Phase:
    """Return the phase before round 1 in which the mean of the clients' features is found."""
    network = context.network
    # This training leaves nothing behind, so its optimizer is not kept either.
    training_settings = replace(context.training, keep_optimizer=False)
    fedavg_pass = single_pass(recipe(replace(context, terms=(), training=training_settings)))

    def begin(server: FedDBEServer, client: RecipeClient) -> RecipeWork:
        return fedavg_pass.begin(shared_model(server, None), fedavg_state(client))

    def end(
        server: FedDBEServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[RecipeClient, RecipeUpload]:
        # Only what is uploaded outlives this training.
        return client, fedavg_pass.end(server, fedavg_state(client), work)[1]

    def sums(
        server: FedDBEServer, client: RecipeClient, upload: RecipeUpload, batch: Batch
    ) -> Tree:
        features = network.eval(upload["params"], upload["buffers"], batch["x"]).features.flatten(1)
        weight = batch["weight"].to(features.dtype)
        return {"feature_mean": weight @ features, "count": weight.sum()}

    training = replace(fedavg_pass, begin=begin, end=end)
    return mean_before_round_1(sums, passes=(training,), send=None, all_clients=True)


def fedavg_state(client: RecipeClient) -> Tree:
    """Return a client's state without what FedDBE adds to FedAvg."""
    return {
        key: leaf
        for key, leaf in client.items()
        if key not in ("personal_params", "terms", "optimizer")
    }
