"""The keys of every model, applied to its module: adapters, and which weights are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fl.base.errors import Location
from fl.base.model_keys import ModelKeys
from fl.pytorch.lora import add_lora
from fl.pytorch.patterns import matches


def adapt(module: Any, values: Mapping[str, Any]) -> Any:
    """Return a new module after the keys of every model have changed it.

    Without adapters, weights that no pattern of ``trainable`` matches are frozen. With adapters,
    all weights but theirs and the head's are, and ``trainable`` names more that are trained.

    Args:
        module: The module, as the model builds it.
        values: The values of the model's keys.

    Raises:
        FedloomError: If a pattern matches nothing.
    """
    keys = ModelKeys.of(values, Location("model"))
    if keys == ModelKeys():
        return module
    network: nn.Module = module
    if keys.adapter is not None:
        add_lora(network, keys.adapter.lora)
    if keys.trainable is not None:
        weights = {n: w for n, w in network.named_parameters() if w.is_floating_point()}
        trained = matches(keys.trainable, weights, "trainable", "weight of the model")
        if keys.adapter is None:
            network.requires_grad_(False)
        for name in trained:
            weights[name].requires_grad_(True)
    return network
