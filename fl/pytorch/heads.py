"""The head of a model: the layer that makes the outputs, found by a pass through the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class HeadSearch:
    """The layers whose outputs reach the model's without passing another layer of weights.

    Within `open`, the output of every such layer is cut from what was computed before. What then
    gets a gradient from the model's outputs is a head.

    Args:
        module: The model.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = {
            name: layer
            for name, layer in module.named_modules()
            if name and _has_matrix(layer) and not any(map(_has_matrix, _below(layer)))
        }
        self._matrices = [
            f"{prefix}.{name}" if prefix else name
            for prefix, layer in module.named_modules()
            for name, parameter in layer.named_parameters(recurse=False)
            if prefix not in self._layers and parameter.dim() > 1
        ]
        self._cuts: dict[str, list[Tensor]] = {}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Follow one pass; gradients are computed within."""
        hooks = [
            layer.register_forward_hook(self._cutter(name)) for name, layer in self._layers.items()
        ]
        try:
            with torch.enable_grad():
                yield
        finally:
            for hook in hooks:
                hook.remove()

    def _cutter(self, name: str) -> Callable[[nn.Module, object, object], object]:
        def cut(layer: nn.Module, inputs: object, output: object) -> object:
            return _map_tensors(self._cut, output, self._cuts.setdefault(name, []))

        return cut

    @staticmethod
    def _cut(output: Tensor, cuts: list[Tensor]) -> Tensor:
        if not output.is_floating_point():
            return output
        cuts.append(output.detach().requires_grad_())
        # A copy, because the next layer may change it in place.
        return cuts[-1].clone()

    def names(self, outputs: Tensor, params: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the layers that make the outputs, in the order of calls.

        They are names of weights if the outputs are made by weights that belong to no single layer.
        A convolution that makes outputs for each pixel is no head.

        Args:
            outputs: Outputs of the pass that `open` followed, [b, ...].
            params: The weights of that pass by name, which require gradients.
        """
        if not outputs.requires_grad:
            return []
        tensors = {name: params[name] for name in self._matrices if name in params}
        cuts = [(name, cut) for name, cuts in self._cuts.items() for cut in cuts]
        candidates = [*tensors.items(), *cuts]
        if not candidates:
            return []
        gradients = torch.autograd.grad(
            outputs.sum(), [tensor for _, tensor in candidates], allow_unused=True
        )
        pairs = zip(candidates, gradients, strict=True)
        reached = list(dict.fromkeys(name for (name, _), slope in pairs if slope is not None))
        if weights := [name for name in reached if name in tensors]:
            return weights
        return [
            name
            for name in reached
            if outputs.dim() == 2 or isinstance(self._layers[name], nn.Linear)
        ]


def _has_matrix(layer: nn.Module) -> bool:
    """Whether a layer has a weight of its own that is no scale or shift."""
    return any(parameter.dim() > 1 for parameter in layer.parameters(recurse=False))


def _below(layer: nn.Module) -> Iterator[nn.Module]:
    """The layers inside a layer."""
    return (inner for inner in layer.modules() if inner is not layer)


def _map_tensors(
    function: Callable[[Tensor, list[Tensor]], Tensor], value: Any, cuts: list[Tensor]
) -> Any:
    """Return an output of a layer with other tensors."""
    if isinstance(value, Tensor):
        return function(value, cuts)
    if isinstance(value, dict):
        return {key: _map_tensors(function, item, cuts) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(function, item, cuts) for item in value)
    return value
