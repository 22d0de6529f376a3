"""MOON: features are pulled to those of the shared model and pushed from those of the last one.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. arXiv:2103.16257.

Family: drift. Exchanged: model. Local: last model. Key: `mu`.

The contrast is over what goes into the classifier; the projection head that the paper puts before
the classifier is a key of models (``projection: 256``). In a client's first round, its last model
is the initial one. The values of ``second`` are the paper's alternatives to the contrast (its table
6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    SHARED,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Positive,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    ReferencePass,
    ReferenceTerm,
    Variables,
    cross_entropy,
    declare,
    recipe,
    single_pass,
    weighted_mean,
)


class MOONClient(RecipeClient):
    """State of a client.

    Attributes:
        previous: Variables of the model that it sent last.
    """

    previous: Variables


class MOONWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        previous: As in `MOONClient`.
    """

    previous: Variables


@declare("global", modalities=True)
class MOON:
    """FedAvg with a contrast between models.

    Attributes:
        mu: Weight of the second term (equation 4; best values of the paper: 1 to 10).
        tau: Temperature of the contrast.
        second: Second term: `contrast`, the `squared` distance to the shared model's features, or
            `none`, which is FedAvg.
    """

    mu: NonNegative = 1.0
    tau: Positive = 0.5
    second: Literal["contrast", "squared", "none"] = "contrast"

    def build(self, context: BuildContext) -> Method:
        """FedAvg with one more term; a client keeps the model that it sent last."""
        if self.second == "none":
            return recipe(context)
        if self.second == "squared":
            return recipe(context, terms=(cross_entropy, model_distance(self.mu)))
        base = recipe(context, terms=(cross_entropy, model_contrast(self.mu, self.tau, "previous")))
        local = single_pass(base)

        def init(variables: Variables) -> tuple[RecipeServer, MOONClient]:
            server, client = base.init(variables)
            return server, {**client, "previous": variables}

        def begin(server: RecipeServer, client: MOONClient) -> MOONWork:
            return {**local.begin(server, client), "previous": client["previous"]}

        def end(
            server: RecipeServer, client: MOONClient, work: MOONWork
        ) -> tuple[MOONClient, RecipeUpload]:
            client, upload = local.end(server, client, work)
            return {**client, "previous": upload}, upload

        return replace(base, init=init, passes=(replace(local, begin=begin, end=end),))


def model_contrast(mu: NonNegative, tau: Positive, previous: str) -> ReferenceTerm:
    """Return mu times the model-contrastive loss (MOON, equation 3), weighted over the batch.

    -log(exp(cos(z, z_glob)/tau) / (exp(cos(z, z_glob)/tau) + exp(cos(z, z_prev)/tau))), where z are
    the features of the model being trained, z_glob those of the shared model and z_prev those of
    the client's last model. The latter two are frozen and in evaluation mode.

    Args:
        mu: Weight mu.
        tau: Temperature tau.
        previous: Key of the client's last model in the work tree.
    """
    names = {model: f"{model} features" for model in (SHARED, previous)}

    def reference(reference_pass: ReferencePass) -> dict[str, Tensor]:
        return {name: reference_pass(model).features.flatten(1) for model, name in names.items()}

    def term(forward: Forward) -> Tensor:
        z, references = forward.output.features.flatten(1), forward.batch["reference"]
        shared_similarity = F.cosine_similarity(z, references[names[SHARED]], dim=1) / tau
        previous_similarity = F.cosine_similarity(z, references[names[previous]], dim=1) / tau
        return mu * weighted_mean(
            F.softplus(previous_similarity - shared_similarity), forward.batch
        )

    return ReferenceTerm(term, reference)


def model_distance(mu: NonNegative) -> ReferenceTerm:
    """Mu ||z - z_glob||^2, the weighted mean over the batch, with the features of `model_contrast`.

    It is the alternative to which MOON's section 4.7 compares the contrast.
    """
    name = f"{SHARED} features"

    def reference(reference_pass: ReferencePass) -> dict[str, Tensor]:
        return {name: reference_pass(SHARED).features.flatten(1)}

    def term(forward: Forward) -> Tensor:
        differences = forward.output.features.flatten(1) - forward.batch["reference"][name]
        return mu * weighted_mean(differences.square().sum(1), forward.batch)

    return ReferenceTerm(term, reference)
