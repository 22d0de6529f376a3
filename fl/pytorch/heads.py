"""The head of a model: the layer that makes the outputs, found by a pass through the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

Cuts = dict[str, list[Tensor]]
"""Outputs of layers by name, cut from what was computed before."""


def find_heads(
    module: nn.Module,
    weights: Mapping[str, Tensor],
    run: Callable[[Mapping[str, Tensor]], Tensor],
) -> list[str]:
    """Return the layers whose outputs reach the model's without passing another layer of weights.

    The output of every such layer is cut from what was computed before. What then gets a gradient
    from the model's outputs is a head. A convolution that makes outputs for each pixel is none.

    Args:
        module: The model.
        weights: Its weights by name.
        run: Function from weights that require gradients to the outputs of a pass, [b, ...].

    Returns:
        Names of layers, in the order of calls; names of weights if the outputs are made by weights
        that belong to no single layer.
    """
    layers = {
        name: layer
        for name, layer in module.named_modules()
        if name
        and PARAMETRIZATIONS not in f".{name}."
        and _has_matrix(layer)
        and not any(_has_matrix(inner) for inner in _inner_layers(layer))
    }
    params = {name: weight.detach().requires_grad_() for name, weight in weights.items()}
    # Weights of more than one dimension that belong to none of these layers.
    loose_weights = {
        name: weight
        for name, weight in params.items()
        if weight.dim() > 1 and _layer_of(name) not in layers
    }
    cuts: Cuts = {}
    hooks = [
        layer.register_forward_hook(partial(_cut_output, cuts, name))
        for name, layer in layers.items()
    ]
    try:
        with torch.enable_grad():
            outputs = run(params)
            total = outputs.sum()
    finally:
        for hook in hooks:
            hook.remove()
    if not any(module.children()):  # The model is one layer, which is the head as a whole.
        return [*params]
    candidates = [*loose_weights.items(), *((name, cut) for name in cuts for cut in cuts[name])]
    if not outputs.requires_grad or not candidates:
        return []
    gradients = torch.autograd.grad(total, [tensor for _, tensor in candidates], allow_unused=True)
    pairs = zip(candidates, gradients, strict=True)
    head_names = list(dict.fromkeys(name for (name, _), slope in pairs if slope is not None))
    if weight_names := [name for name in head_names if name in loose_weights]:
        return weight_names
    is_per_sample = outputs.dim() == 2
    return [name for name in head_names if is_per_sample or isinstance(layers[name], nn.Linear)]


PARAMETRIZATIONS = ".parametrizations."
"""Part of the names of weights from which torch.nn.utils.parametrize computes a layer's weight."""


def _layer_of(name: str) -> str:
    """Return the layer of a weight, also of one from which a layer's weight is computed."""
    return name.rpartition(".")[0].partition(PARAMETRIZATIONS)[0]


def _inner_layers(layer: nn.Module) -> list[nn.Module]:
    """Return the layers in a layer, without those from which its weight is computed."""
    named = layer.named_modules()
    return [inner for name, inner in named if name and PARAMETRIZATIONS not in f".{name}."]


def _has_matrix(layer: nn.Module) -> bool:
    """Whether a layer has a weight of its own that is no scale or shift."""
    if is_parametrized(layer):
        return True
    return any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))


def _cut_output(cuts: Cuts, name: str, layer: nn.Module, inputs: object, output: Any) -> Any:
    """Return the output of a layer with tensors that are cut, which ``cuts`` get."""
    if isinstance(output, Tensor) and output.is_floating_point():
        cuts.setdefault(name, []).append(output.detach().requires_grad_())
        # A copy, because the next layer may change it in place.
        return cuts[name][-1].clone()
    cut = partial(_cut_output, cuts, name, layer, inputs)
    if isinstance(output, dict):
        return {key: cut(item) for key, item in output.items()}
    if type(output) in (list, tuple):
        return type(output)(map(cut, output))
    return output
