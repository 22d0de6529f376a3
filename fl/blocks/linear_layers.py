"""Linear layers as tensors: a network's classifier, and layers that a method adds."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fl.api import FedloomError, Network, Weights, trees
from fl.pytorch.folding import linear


def linear_parameters(
    generator: torch.Generator, example: Tensor, inputs: int, outputs: int
) -> dict[str, Tensor]:
    """Draw ``weight`` [outputs, inputs] and ``bias`` [outputs] of a linear layer.

    The distribution is PyTorch's, uniform between -1 / sqrt(inputs) and 1 / sqrt(inputs).

    Args:
        generator: The source of the random numbers.
        example: A tensor with the precision and device of the result.
        inputs: The number of inputs.
        outputs: The number of outputs.
    """
    bound = 1 / math.sqrt(inputs)

    def uniform(*shape: int) -> Tensor:
        unit = torch.rand(*shape, generator=generator, dtype=torch.float64) * 2 - 1
        return (unit * bound).to(example)

    return {"weight": uniform(outputs, inputs), "bias": uniform(outputs)}


def head_parameters(network: Network, params: Weights) -> Weights:
    """Return the classifier's ``weight`` [classes, d] and its ``bias`` [classes], if it has one.

    Of a model with a classifier for each modality, it is the last one.

    Raises:
        FedloomError: If the head of the model is something else than one trained linear layer.
    """
    names = [name for name in network.names["params"] if name in network.head]
    is_linear = all(params[name].dim() == 2 for name in names if name.endswith("weight"))
    layer = {name.rpartition(".")[2]: params[name] for name in names}
    if "weight" not in layer or not is_linear:
        title = ", ".join(network.head_names)
        raise FedloomError(
            f"the head of the model, {title or 'if it has one'}, is not one trained linear layer",
            advice="choose a model whose outputs come from one linear layer that is trained",
        )
    return layer


def zero_head(network: Network, params: Weights) -> Weights:
    """Return a classifier of the network's shape whose parameters are all zeros."""
    return trees.zeros_like(head_parameters(network, params))


def head_outputs(head: Weights, features: Tensor) -> Tensor:
    """Apply a classifier to features [b, ...]; the outputs are [b, classes]."""
    return linear_outputs(head, features.flatten(1))


def linear_outputs(layer: Weights, x: Tensor) -> Tensor:
    """Apply a linear layer to inputs, [b, in] or [in]; a stack of clients needs one product."""
    return linear(x, layer["weight"], layer.get("bias"))


def feature_width(network: Network, params: Weights) -> int:
    """Return the number of features that enter the classifier."""
    return int(head_parameters(network, params)["weight"].shape[1])
