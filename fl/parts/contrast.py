"""Model contrast: features pulled to those of one model, and pushed from those of another."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from fl.api import SHARED, Compared, Forward, NonNegative, Positive, See, weighted_mean


def model_contrast(mu: NonNegative, tau: Positive, previous: str) -> Compared:
    """mu times the model-contrastive loss (MOON, equation 3), the weighted mean over the batch.

    -log(exp(cos(z, z_glob)/tau) / (exp(cos(z, z_glob)/tau) + exp(cos(z, z_prev)/tau))), where z are
    the features of the model being trained, z_glob those of the shared model and z_prev those of
    the client's last model. The latter two are frozen and in evaluation mode.

    Args:
        previous: The key of the work tree under which the method keeps the client's last model.
    """
    names = {model: f"{model} features" for model in (SHARED, previous)}

    def reference(see: See) -> dict[str, Tensor]:
        return {name: see(model).features.flatten(1) for model, name in names.items()}

    def term(forward: Forward) -> Tensor:
        z, known = forward.output.features.flatten(1), forward.batch["reference"]
        toward = F.cosine_similarity(z, known[names[SHARED]], dim=1) / tau
        away = F.cosine_similarity(z, known[names[previous]], dim=1) / tau
        return mu * weighted_mean(F.softplus(away - toward), forward.batch)

    return Compared(term, reference)


def model_distance(mu: NonNegative) -> Compared:
    """mu ||z - z_glob||^2, the weighted mean over the batch, with the features of `model_contrast`.

    It is the alternative to which MOON's section 4.7 compares the contrast.
    """
    name = f"{SHARED} features"

    def reference(see: See) -> dict[str, Tensor]:
        return {name: see(SHARED).features.flatten(1)}

    def term(forward: Forward) -> Tensor:
        apart = forward.output.features.flatten(1) - forward.batch["reference"][name]
        return mu * weighted_mean(apart.square().sum(1), forward.batch)

    return Compared(term, reference)
