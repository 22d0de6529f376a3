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

from torch import Tensor

from fl.api import (
    PERSONAL_PARAMS,
    AdaptiveTerm,
    Batch,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Phase,
    Predictor,
    Share,
    Sweep,
    Tree,
    WeightedAverage,
    declare,
    recipe,
    shared,
    single_pass,
    trees,
    weighted_mean,
)
from fl.blocks.linear_layers import feature_width, head_outputs, head_parameters

FEATURE_MEAN = "feature_mean"
"""Key of the mean of features: in the server's tree over clients, in a work tree of its batches."""


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

        def zero_mean(variables: Tree) -> Tensor:
            leaf = trees.leaves(variables["params"])[0]
            return leaf.new_zeros(feature_width(network, variables["params"]))

        def biased_loss(forward: Forward) -> Tensor:
            outputs = biased_outputs(
                forward.params, forward.output.features, forward.personal_params
            )
            return context.task.loss(outputs, forward.batch)

        def biased_outputs(params: Tree, features: Tensor, bias: Tree) -> Tensor:
            return head_outputs(
                head_parameters(network, params), features.flatten(1) + bias["bias"]
            )

        def distance(forward: Forward, state: Tree) -> tuple[Tensor, Tree]:
            features = forward.output.features.flatten(1)
            newest = weighted_mean(features.T, forward.batch)
            mean = (1 - self.mu) * state["mean"] + self.mu * newest
            square = (mean - forward.shared[FEATURE_MEAN]).square().mean()
            return self.kappa * square / 2, {"mean": mean.detach()}

        regulariser = AdaptiveTerm(
            FEATURE_MEAN,
            lambda variables: {"mean": zero_mean(variables)},
            distance,
            lambda _, new: new,
        )
        base = recipe(
            context,
            terms=(biased_loss, regulariser),
            personal_params=lambda variables: {"bias": zero_mean(variables)},
        )
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            return {**server, FEATURE_MEAN: zero_mean(variables)}, client

        def begin(server: Tree, client: Tree) -> Tree:
            work = local.begin(server, client)
            restarted = {"mean": 0 * work["terms"][FEATURE_MEAN]["mean"]}
            return {**work, "terms": {**work["terms"], FEATURE_MEAN: restarted}}

        def personal(server: Tree, client: Tree | None) -> Tree:
            return {**shared(server, None), PERSONAL_PARAMS: dict((client or {})[PERSONAL_PARAMS])}

        def predict(variables: Tree, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], x)
            return biased_outputs(variables["params"], output.features, variables[PERSONAL_PARAMS])

        return replace(
            base,
            init=init,
            passes=(replace(local, begin=begin),),
            earlier_phases=(first_means(context),),
            views={"personal": Predictor(personal, predict, is_per_sample=True)},
        )


def first_means(context: BuildContext) -> Phase:
    """Return the phase before round 1 in which the mean of the clients' features is found."""
    network, plain = context.network, single_pass(recipe(replace(context, terms=())))

    def begin(server: Tree, client: Tree) -> Tree:
        return plain.begin(
            {key: server[key] for key in ("params", "buffers")}, without_added(client)
        )

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        # Only what is uploaded outlives this training.
        return dict(client), plain.end(server, without_added(client), work)[1]

    def without_added(client: Tree) -> Tree:
        added = (PERSONAL_PARAMS, "terms", "optimizer")
        return {key: leaf for key, leaf in client.items() if key not in added}

    def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
        features = network.eval(upload["params"], upload["buffers"], batch["x"]).features.flatten(1)
        weight = batch["weight"].to(features.dtype)
        return {"sum": weight @ features, "count": weight.sum()}

    def send_mean(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        return dict(client), {FEATURE_MEAN: totals["sum"] / totals["count"].clamp(min=1)}

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        return {**server, **trees.mean(uploads, n)}, dict(clients)

    return Phase(
        (replace(plain, begin=begin, end=end), Sweep(look, send_mean)),
        WeightedAverage(aggregate),
        is_active=lambda round_: round_ == 1,
        all_clients=True,
    )
