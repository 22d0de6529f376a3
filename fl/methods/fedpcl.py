"""FedPCL: clients exchange prototypes alone, and contrast their samples with everybody's.

Tan, Long, Ma, Liu, Zhou, Jiang. Federated Learning from Pre-Trained Models: A Contrastive Learning
Approach. NeurIPS 2022. arXiv:2209.10083.

Family: class means. Exchanged: mean features by class, of all clients. Local: model. Key: `tau`.

A prototype is the mean of the unit features of a class. A client gets the latest ones of each
client, and their mean over the clients with that class, which also fills the gaps of a client.
There is no cross-entropy, so the head is not trained, and nothing is before the first prototypes
arrive. A client predicts among its own prototypes, or, until it has some, among the means. The
paper trains a projection on frozen backbones; here all weights that the model trains. Each softmax
is over all classes, as PFLlib (d832e76) reads the paper. The authors' code (yuetan031/FedPCL,
0c3895b) has no contrast with the means, a sum over clients, and a softmax over a batch's samples.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Forward,
    Method,
    Output,
    Positive,
    Predictor,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    TrainingPass,
    Tree,
    Variables,
    all_weights,
    declare,
    personal_model,
    recipe,
    single_pass,
    weighted_mean,
    weights_not_in,
)
from fl.blocks.anchor_exchange import class_means_sweep, keep_trained_model
from fl.blocks.anchors import Anchors, anchor_scores, has_anchor, uniform_anchors, zero_anchors

"""Key in the server's tree: each client's prototypes, [clients, C, d]; zeros where it has none."""


class FedPCLServer(RecipeServer):
    """State of the server.

    Attributes:
        prototypes: Prototypes of every client, [clients, C, d]; zeros where it has none.
        anchors: Their means, [C, d].
    """

    prototypes: Tensor
    anchors: Tensor


class FedPCLUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        anchors: Its mean unit feature and number of samples by class.
    """

    anchors: Anchors


class FedPCLModel(Variables):
    """Model of a client that is scored.

    Attributes:
        prototypes: Its own prototypes, [C, d]; the means before it has some.
    """

    prototypes: Tensor


@declare("personal", title="FedPCL")
class FedPCL:
    """Local models whose features are contrasted with the prototypes of all clients.

    Attributes:
        tau: Temperature (the authors' code: .07).
    """

    tau: Positive = 0.07

    def build(self, context: BuildContext) -> Method:
        """Return local training on the contrasts L_g + L_p, and a server that keeps prototypes."""
        network = context.network
        body = (TrainingPass(weights_not_in(network.head)),)
        base = recipe(context, terms=(self.contrasts,), local=all_weights, passes=body)
        passes = (keep_trained_model(single_pass(base)), class_means_sweep(context, unit_features))

        def init(variables: Variables) -> tuple[FedPCLServer, RecipeClient]:
            server, client = base.init(variables)
            averages = zero_anchors(network, variables, context.classes)
            sets = averages.expand(context.clients, *averages.shape).clone()
            return {**server, "prototypes": sets, "anchors": averages}, client

        def aggregate(
            server: FedPCLServer, clients: RecipeClient, uploads: FedPCLUpload, n: Tensor
        ) -> tuple[FedPCLServer, RecipeClient]:
            sets = server["prototypes"].index_copy(0, clients["id"], uploads["anchors"]["means"])
            averages = uniform_anchors(sets, has_anchor(sets))
            return {**server, "prototypes": sets, "anchors": averages}, clients

        def predict(variables: FedPCLModel, memory: Tree, x: Tensor) -> Tensor:
            output = network.eval(variables["params"], variables["buffers"], x)
            return anchor_scores(unit_features(output), variables["prototypes"])

        views = {"personal": Predictor(with_prototypes, predict, is_per_sample=True)}
        return replace(base, init=init, passes=passes, aggregate=aggregate, views=views)

    def contrasts(self, forward: Forward) -> Tensor:
        """Return the contrast with the means plus the mean contrast with a client's prototypes."""
        features, labels = unit_features(forward.output), forward.batch["y"]
        server: FedPCLServer = forward.server
        sets, averages = server["prototypes"], server["anchors"]
        exists = has_anchor(sets)
        filled = torch.where(exists[..., None], sets, averages)
        is_client = exists.any(-1).to(features.dtype)
        with_clients = contrast(features, labels, filled, self.tau)
        mean = is_client @ with_clients / is_client.sum().clamp(min=1)
        return weighted_mean(contrast(features, labels, averages, self.tau) + mean, forward.batch)


def with_prototypes(server: FedPCLServer, client: RecipeClient) -> FedPCLModel:
    """Return a client's model and its prototypes, or the means before it has some, as a view."""
    number = client["id"].reshape(1)
    prototypes = server["prototypes"].index_select(0, number)[0]
    prototypes = torch.where(has_anchor(prototypes).any(), prototypes, server["anchors"])
    return {**personal_model(server, client), "prototypes": prototypes}


def unit_features(output: Output) -> Tensor:
    """Return features of length 1, [b, d]."""
    return F.normalize(output.features.flatten(1), dim=1)


def contrast(features: Tensor, labels: Tensor, prototypes: Tensor, tau: float) -> Tensor:
    """Return -log of the share of the label's class in exp(<z, p_c> / tau), [..., b].

    Classes without a prototype are left out, and the contrast of their samples is 0.

    Args:
        features: Unit features z, [b, d].
        labels: The class of each sample, [b].
        prototypes: Prototypes p, [..., C, d].
        tau: The temperature.
    """
    exists = has_anchor(prototypes)
    similarity = features @ prototypes.mT / tau
    # Finite, because an infinity would have a gradient that is not a number.
    similarity = similarity.where(exists[..., None, :], torch.finfo(similarity.dtype).min / 2)
    index = labels.expand(similarity.shape[:-1])[..., None]
    losses = similarity.logsumexp(-1) - similarity.gather(-1, index)[..., 0]
    return losses.where(exists[..., labels], 0)
