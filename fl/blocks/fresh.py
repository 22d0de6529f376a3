"""Freshly initialised weights of a network inside a step, drawn by a key.

Weights and biases of linear and convolutional layers are uniform within 1 / sqrt(fan in), as
PyTorch draws them: K. He et al. Delving Deep into Rectifiers. ICCV 2015, with a gain of 1 /
sqrt(3). All other parameters are as in a new network, such as the ones and zeros of a
normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fl.api import Network, Tree, keyed

STREAM = keyed.stream_of("fresh weights")


def undrawn(network: Network) -> dict[str, Tensor]:
    """The parameters that are the same in every new network, by name, in host memory."""
    like = network.init(0)["params"]
    return {name: tensor for name, tensor in like.items() if _bound(name, like) is None}


def fresh(network: Network) -> Callable[[Tensor, Tree], dict[str, Any]]:
    """A function that gives the parameters of a new network by name, for one key and what `undrawn`
    gives, on the key's device.
    """
    like = network.init(0)["params"]
    bounds = {name: _bound(name, like) for name in like}

    def made(key: Tensor, others: Tree) -> dict[str, Any]:
        variables: dict[str, Any] = {}
        for number, (name, tensor) in enumerate(like.items()):
            bound = bounds[name]
            if bound is None:
                variables[name] = others[name]
                continue
            draw = keyed.uniform(keyed.derived(key, STREAM), number, tuple(tensor.shape))
            variables[name] = ((2 * draw - 1) * bound).to(tensor.dtype)
        return variables

    return made


def _bound(name: str, params: dict[str, Tensor]) -> float | None:
    """The bound of a parameter's uniform distribution; None for one that is not drawn."""
    owner = params.get(f"{name.removesuffix('bias')}weight") if name.endswith("bias") else None
    tensor = params[name] if owner is None else owner
    return 1 / math.sqrt(tensor[0].numel()) if tensor.dim() > 1 else None
