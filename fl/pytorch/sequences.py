"""Models that are plain layers one after another, called once with a whole stack of clients.

Layer by layer (`fl.pytorch.folding`) each would find out anew what is stacked, and would show the
next one what it gives as one client sees it. Here clients are folded once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

from fl.pytorch import private
from fl.pytorch.folding import POINTWISE, POOLS, apart, convolution, images, product

FOLDED = {nn.Conv2d, nn.BatchNorm2d} | POOLS
"""Layers to which a stack of images is one of more channels."""

APART = {nn.Flatten, nn.Linear}
"""Layers that want clients in front."""

KINDS = FOLDED | APART | POINTWISE | {nn.Identity}


class Sequence:
    """A module as the layers that it calls one after another.

    last: whether images have channels last on a CPU, see `fl.pytorch.folding.fold`.
    """

    def __init__(self, module: nn.Module, last: bool) -> None:
        self._layers, self._last = [*_layers(module)], last
        self._images = any(type(layer) in FOLDED for layer in self._layers)
        self._flat = {
            f"{prefix}.{name}"
            for prefix, layer in module.named_modules()
            for name in ("weight", "bias", "running_mean", "running_var")
            if type(layer) in FOLDED
        }

    @classmethod
    def of(cls, module: nn.Module, last: bool) -> Sequence | None:
        """None for a module that is more than a sequence, or that has another layer."""
        plain = isinstance(module, nn.Sequential) and all(map(_plain, _layers(module)))
        return cls(module, last) if plain else None

    def variables(self, x: Tensor, stacks: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """What the module's parameters and buffers must be for such inputs [clients, b, ...]; None
        where it cannot be called with them.
        """
        if self._images and x.dim() != 5:
            return None
        return {name: t.flatten(0, 1) if name in self._flat else t for name, t in stacks.items()}

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Outputs, and what goes into the last linear layer if there is one, [clients, b, ...]."""
        clients, folded, features = len(x), False, None
        for layer in self._layers:
            kind = type(layer)
            if kind in FOLDED and not folded:
                x, folded = images(x.movedim(0, 1), self._last), True
            elif kind in APART and folded:
                x, folded = apart(x, clients).movedim(1, 0), False
            if kind is nn.Flatten:
                x = x.flatten(2)
            elif isinstance(layer, nn.Conv2d):
                x = convolution(layer, self._last, x, layer.weight, layer.bias, clients)
            elif isinstance(layer, nn.Linear):
                features, x = x, _linear(layer, x)
            else:
                x = kind.forward(layer, x)
        return apart(x, clients).movedim(1, 0) if folded else x, features


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    if x.dim() == 3:
        return product(x, layer.weight, layer.bias)
    rows = product(x.flatten(1, -2), layer.weight, layer.bias)
    return rows.reshape(*x.shape[:-1], -1)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    if type(module) is not nn.Sequential or private.hooked(module):
        yield module
        return
    for layer in module:
        yield from _layers(layer)


def _plain(layer: nn.Module) -> bool:
    """Whether a layer does nothing but what `Sequence` does in its place."""
    if type(layer) not in KINDS or private.hooked(layer):
        return False
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    if isinstance(layer, nn.BatchNorm2d):
        return layer.momentum is not None
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return not getattr(layer, "return_indices", False)
