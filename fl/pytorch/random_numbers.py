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

MISSING_KEYS = (
    "the model draws random numbers (dropout and the like), and the method trains it without keys; "
    'pass key=batch.get("key") to Network.train'
)
ADVICE = (
    "use nn.Dropout to nn.Dropout3d, or dropout to dropout3d and scaled_dot_product_attention of "
    "torch.nn.functional, called as F.dropout(x, p, self.training). Between layers of an LSTM or a "
    "GRU, use nn.Dropout instead of dropout="
)


class RandomNumbers:
    """The random numbers of one pass; the n-th call of a random layer uses the n-th stream.

    Attributes:
        key: Key of each sample, int64 [b]; None refuses to draw.
        nested: Whether a gradient is taken through a gradient.
        has_drawn: Whether a number was drawn.
        needs_replaced_functions: Whether the pass needs `fl.pytorch.functions` for another reason.
    """

    def __init__(self, key: Tensor | None, nested: bool = False) -> None:
        self.key, self.nested = key, nested
        self.has_drawn = self.needs_replaced_functions = False
        self._stream = 0

    def uniform(self, shape: tuple[int, ...]) -> Tensor:
        """Draw numbers in [0, 1).

        If the first dimension is that of the batch, or a multiple of it (heads of attention),
        numbers depend on each sample's key; otherwise on one key made of all of them.

        Args:
            shape: Shape of the result.

        Returns:
            Numbers, float64 [*shape].

        Raises:
            FedloomError: If there are no keys.
        """
        if self.key is None:
            raise FedloomError(MISSING_KEYS)
        self.has_drawn = True
        stream, self._stream = self._stream, self._stream + 1
        samples = self.key.shape[0]
        if not shape or shape[0] % samples:
            return keyed.uniform(self.key.sum(), stream, shape)
        numbers = keyed.uniform(self.key, stream, (shape[0] // samples, *shape[1:]))
        return numbers.reshape(shape)

    def keep_mask(self, x: Tensor, p: float, dims: int | None = None) -> Tensor:
        """Draw a mask that is zero with probability p and one otherwise.

        Args:
            x: The tensor that the mask is for.
            p: Probability of zero.
            dims: Number of leading dimensions of x over which the mask is drawn; None: all.

        Returns:
            Mask with the type and the number of dimensions of x; the other dimensions have size 1.
        """
        shape = tuple(x.shape[:dims])
        mask = (self.uniform(shape) >= p).to(x.dtype)
        return mask.reshape(shape + (1,) * (x.dim() - len(shape)))

    def drop(self, x: Tensor, p: float, inplace: bool = False, dims: int | None = None) -> Tensor:
        """Set elements of x to zero with probability p, and scale the others by 1/(1 - p).

        Args:
            x: Input of any shape.
            p: Probability of zero.
            inplace: Whether x itself is changed.
            dims: Number of leading dimensions that are drawn separately; see `keep_mask`.
        """
        factor = self.keep_mask(x, p, dims) / max(1 - p, 1e-12)
        return x.mul_(factor) if inplace else x * factor


def generator_states() -> list[Tensor]:
    """Return the states of PyTorch's shared generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda]


def have_generators_changed(initial_states: list[Tensor]) -> bool:
    """Whether PyTorch's shared generators differ from a result of `generator_states`."""
    return not all(map(torch.equal, initial_states, generator_states()))


def describe_drawing_layer(module: nn.Module, run: Callable[[], object]) -> str:
    """Describe the innermost layer in which a pass draws from PyTorch's shared generators.

    Args:
        module: The model.
        run: Function that makes a pass through the model.

    Returns:
        ``the model's layer 'a.b' (Type)``, or ``the model`` if no layer draws.
    """
    descriptions: list[str] = []
    states_at_entry: list[list[Tensor]] = []
    names = {layer: name for name, layer in module.named_modules()}

    def enter(layer: nn.Module, inputs: object) -> None:
        states_at_entry.append(generator_states())

    def leave(layer: nn.Module, inputs: object, output: object) -> None:
        if have_generators_changed(states_at_entry.pop()):
            name, class_name = names.get(layer, ""), type(layer).__name__
            descriptions.append(
                f"the model's layer {name!r} ({class_name})"
                if name
                else f"the model ({class_name})"
            )

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return descriptions[0] if descriptions else "the model"
