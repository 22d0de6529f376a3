"""The random numbers of one pass through a model, and a check for those drawn in other ways."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from fl.base.errors import FedloomError
from fl.pytorch import keyed

KEYLESS = (
    "the model draws random numbers (dropout and the like), and the method trains it without keys; "
    'pass key=batch.get("key") to Network.train'
)
ADVICE = (
    "use nn.Dropout to nn.Dropout3d, or dropout to dropout3d and scaled_dot_product_attention of "
    "torch.nn.functional, called as F.dropout(x, p, self.training). Between layers of an LSTM or a "
    "GRU, use nn.Dropout instead of dropout="
)


class Draws:
    """The random numbers of one pass; the n-th call of a random layer draws from the n-th stream.

    Attributes:
        key: Of each sample, int64 [b]; None refuses to draw.
        nested: Whether a gradient is taken through a gradient.
        drawn: Whether a number was drawn.
        wanted: Whether the functions of `fl.pytorch.functions` are needed for another reason.
    """

    def __init__(self, key: Tensor | None, nested: bool = False) -> None:
        self.key, self.nested = key, nested
        self.drawn = self.wanted = False
        self._stream = 0

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Numbers in [0, 1), float64 of that shape.

        If its first dimension is that of the batch, or a multiple of it (heads of attention),
        numbers are drawn by each sample's key; otherwise by one key made of all of them.
        """
        if self.key is None:
            raise FedloomError(KEYLESS)
        self.drawn = True
        stream, self._stream = self._stream, self._stream + 1
        samples = self.key.shape[0]
        if not shape or shape[0] % samples:
            return keyed.uniform(self.key.sum(), stream, shape)
        numbers = keyed.uniform(self.key, stream, (shape[0] // samples, *shape[1:]))
        return numbers.reshape(shape)

    def kept(self, x: Tensor, p: float, dims: int | None = None) -> Tensor:
        """A mask of ones and zeros, zero with probability p.

        It is drawn over x's first ``dims`` dimensions (None: all) and has as many dimensions as x.
        """
        shape = tuple(x.shape[:dims])
        keep = (self.uniform(shape) >= p).to(x.dtype)
        return keep.reshape(shape + (1,) * (x.dim() - len(shape)))

    def drop(self, x: Tensor, p: float, inplace: bool = False, dims: int | None = None) -> Tensor:
        """x with dropped elements set to zero, the rest scaled by 1/(1 - p)."""
        factor = self.kept(x, p, dims) / max(1 - p, 1e-12)
        return x.mul_(factor) if inplace else x * factor


def streams() -> list[Tensor]:
    """The state of PyTorch's shared generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def drawn_since(before: list[Tensor]) -> bool:
    """Whether PyTorch's shared generators have been used since `streams` returned ``before``."""
    now = streams()
    return not all(map(torch.equal, before, now))


def culprit(module: nn.Module, run: Callable[[], object]) -> str:
    """The innermost layer in which a pass draws from PyTorch's shared generators, in words."""
    layers: list[str] = []
    begun: list[list[Tensor]] = []
    names = {id(layer): name for name, layer in module.named_modules()}

    def before(layer: nn.Module, inputs: object) -> None:
        begun.append(streams())

    def after(layer: nn.Module, inputs: object, output: object) -> None:
        if drawn_since(begun.pop()):
            name, kind = names.get(id(layer), ""), type(layer).__name__
            layers.append(f"the model's layer {name!r} ({kind})" if name else f"the model ({kind})")

    hooks = [
        register_module_forward_pre_hook(before),
        register_module_forward_hook(after),
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return layers[0] if layers else "the model"
