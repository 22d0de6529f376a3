"""pFedFDA: heads follow from Gaussians of features, each client's between its own and the shared.

McLaughlin, Su. Personalized Federated Learning via Feature Distribution Adaptation. NeurIPS 2024.
arXiv:2411.00329.

Family: personal layers. Exchanged: body, a Gaussian of features. Local: a Gaussian of features.
Key: `beta`.

A head is the linear discriminant of class means and one covariance. Clients train the body under
the head of the shared Gaussian and their own class shares. Then they estimate the Gaussian of their
features, and send beta times it plus 1 - beta times the shared one; the server takes the mean.
Clients are scored with the newest body and Gaussian, estimated and mixed anew. Of 0, .1, ..., 1,
beta has the least loss of each half of the samples under the other half's Gaussian.

In the authors' code (cj-mclaughlin/pFedFDA, 73c7c40) L-BFGS finds beta, by default one for means
and one for the covariance. The first Gaussian is that code's. It adds a whole identity to each
client's covariance, and takes features while the body trains; here the trained body makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from fl.api import (
    COUNTS,
    Batch,
    BuildContext,
    Method,
    Predictor,
    Share,
    Sweep,
    TrainingPass,
    Tree,
    declare,
    personal,
    recipe,
    rng,
    single_pass,
    trees,
    weights_in,
    weights_not_in,
)
from fl.blocks.gaussian_classifiers import (
    GaussianMixing,
    half_moments,
    held_out_losses,
    initial_gaussian,
)
from fl.blocks.linear_layers import head_outputs, head_parameters

GAUSSIAN, MOMENTS, HEADS = "gaussian", "moments", "heads"


@declare("personal", title="pFedFDA")
class PFedFDA:
    """FedAvg of the body and of a Gaussian of features.

    Attributes:
        beta: Share of a client's own Gaussian; null: chosen by each client.
        shrinkage: Share of a multiple of the identity in covariances (the authors: .0001).
    """

    beta: Share | None = None
    shrinkage: Share = 1e-4

    def build(self, context: BuildContext) -> Method:
        """Return training under the head, a sweep for moments of both halves, one for beta."""
        network, rule = context.network, GaussianMixing(self.beta, self.shrinkage)
        names = [name for name in network.names["params"] if name in network.head]
        training = (TrainingPass(weights_not_in(network.head)),)
        base = recipe(context, local=weights_in(network.head), passes=training)
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            head = head_parameters(network, variables["params"])
            gaussian = initial_gaussian(head, rng.torch_seed(context.seed, "pfedfda"))
            return {**server, GAUSSIAN: gaussian}, client

        def with_head(server: Tree, client: Tree) -> Tree:
            head, params = rule.head(server[GAUSSIAN], client[COUNTS]), client["params"]
            layer = {name: head[name.rpartition(".")[2]].to(params[name]) for name in names}
            return {**client, "params": layer}

        def begin(server: Tree, client: Tree) -> Tree:
            return local.begin(server, with_head(server, client))

        def features(variables: Tree, batch: Batch) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], batch["x"])
            return output.features.flatten(1)

        def look(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
            z = features(personal(upload, client), batch)
            return half_moments(z, batch["y"], batch["weight"], context.classes)

        def keep(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
            heads = rule.heads(server[GAUSSIAN], totals, client[COUNTS])
            return {**client, MOMENTS: totals, HEADS: heads}, dict(upload)

        def try_heads(server: Tree, client: Tree, upload: Tree, batch: Batch) -> Tree:
            z = features(personal(upload, client), batch)
            return {"losses": held_out_losses(client[HEADS], z, batch["y"], batch["weight"])}

        def send(server: Tree, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
            common = dict(server[GAUSSIAN])
            mixed = rule.mixture(common, client[MOMENTS], totals["losses"])
            gaussian = trees.apply(lambda leaf, example: leaf.to(example), mixed, common)
            state = {key: leaf for key, leaf in client.items() if key not in (MOMENTS, HEADS)}
            return state, {**upload, GAUSSIAN: gaussian}

        def own_model(server: Tree, client: Tree | None) -> Tree:
            client_state = with_head(server, client or {})
            model = personal(server, client_state)
            return {**model, GAUSSIAN: dict(server[GAUSSIAN]), COUNTS: client_state[COUNTS]}

        def look_at_samples(variables: Tree, batch: Batch) -> Tree:
            return {"features": features(variables, batch), "labels": batch["y"]}

        def own_head(variables: Tree, values: Mapping[str, Tree]) -> Tree:
            if "train" not in values:
                return {}
            return rule.adapted_head(variables[GAUSSIAN], variables[COUNTS], **values["train"])

        def predict(variables: Tree, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], x)
            if not memory:
                return output.outputs
            return head_outputs(memory, output.features.double()).to(output.outputs)

        passes = (replace(local, begin=begin), Sweep(look, keep), Sweep(try_heads, send))
        view = Predictor(own_model, predict, look_at_samples, own_head)
        return replace(base, init=init, passes=passes, views={"personal": view})
