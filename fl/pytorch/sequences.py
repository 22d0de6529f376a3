"""Models that are plain layers one after another, called once with a whole stack of clients.

If layers are called one by one (`fl.pytorch.folding`), each layer must unwrap its stack and wrap
its result again. Here the clients are folded once for the whole model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from fl.pytorch import torch_internals
from fl.pytorch.folding import (
    POINTWISE,
    POOLS,
    fold_images,
    folded_convolution,
    stacked_product,
    unfold_clients,
)

FOLDED_LAYERS = {nn.Conv2d, nn.BatchNorm2d} | POOLS
"""Layers that take a stack of clients as more channels of one image."""

STACKED_LAYERS = {nn.Flatten, nn.Linear}
"""Layers that take clients as the first dimension."""

SUPPORTED_LAYERS = FOLDED_LAYERS | STACKED_LAYERS | POINTWISE | {nn.Identity}


class LayerSequence:
    """The layers that a module calls one after another.

    Attributes:
        head: The layer whose inputs are the features; None if there is none.

    Args:
        module: The module.
        channels_last: Whether images have channels last on a CPU, see
            `fl.pytorch.folding.fold_layers`.
    """

    def __init__(self, module: nn.Module, channels_last: bool) -> None:
        self._layers, self._channels_last = [*_layers(module)], channels_last
        self.head: nn.Module | None = None
        self._has_images = any(type(layer) in FOLDED_LAYERS for layer in self._layers)
        self._folded_names = {
            f"{prefix}.{name}"
            for prefix, layer in module.named_modules()
            for name in ("weight", "bias", "running_mean", "running_var")
            if type(layer) in FOLDED_LAYERS
        }

    @classmethod
    def from_module(cls, module: nn.Module, channels_last: bool) -> LayerSequence | None:
        """Return the layers of a module; None for other modules than sequences of known layers."""
        is_supported = isinstance(module, nn.Sequential) and all(
            map(_is_supported, _layers(module))
        )
        return cls(module, channels_last) if is_supported else None

    def variables(self, x: Tensor, stacks: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the parameters and buffers with which the module takes a stack of inputs.

        Args:
            x: Inputs, [clients, b, ...].
            stacks: Stacked parameters and buffers by name, [clients, ...].

        Returns:
            Variables by name; None if the module cannot be called with these inputs.
        """
        if self._has_images and x.dim() != 5:
            return None
        return {
            name: stack.flatten(0, 1) if name in self._folded_names else stack
            for name, stack in stacks.items()
        }

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs and the inputs of the head, if any, [clients, b, ...]."""
        clients, folded = len(x), False
        features: Tensor | None = None
        for layer in self._layers:
            layer_type = type(layer)
            if layer_type in FOLDED_LAYERS and not folded:
                x, folded = fold_images(x.movedim(0, 1), self._channels_last), True
            elif layer_type in STACKED_LAYERS and folded:
                x, folded = unfold_clients(x, clients).movedim(1, 0), False
            if layer is self.head:
                features = unfold_clients(x, clients).movedim(1, 0) if folded else x
            if layer_type is nn.Flatten:
                x = x.flatten(2)
            elif isinstance(layer, nn.Conv2d):
                x = folded_convolution(
                    layer, self._channels_last, x, layer.weight, layer.bias, clients
                )
            elif isinstance(layer, nn.Linear):
                x = _linear(layer, x)
            else:
                x = layer_type.forward(layer, x)
        return unfold_clients(x, clients).movedim(1, 0) if folded else x, features


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply stacked linear layers to inputs [clients, b, ..., in]."""
    if x.dim() == 3:
        return stacked_product(x, layer.weight, layer.bias)
    rows = stacked_product(x.flatten(1, -2), layer.weight, layer.bias)
    return rows.reshape(*x.shape[:-1], -1)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested sequences in the order of calls."""
    if type(module) is not nn.Sequential or torch_internals.has_hooks(module):
        yield module
        return
    for layer in module:
        yield from _layers(layer)


def _is_supported(layer: nn.Module) -> bool:
    """Whether `LayerSequence` computes the same as the layer."""
    if type(layer) not in SUPPORTED_LAYERS or torch_internals.has_hooks(layer):
        return False
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    if isinstance(layer, nn.BatchNorm2d):
        return layer.momentum is not None
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return not getattr(layer, "return_indices", False)
