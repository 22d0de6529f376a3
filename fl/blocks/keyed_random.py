"""Random numbers and initial weights inside a step, drawn by keys.

Normal numbers: G. E. P. Box, M. E. Muller. A Note on the Generation of Random Normal Deviates.
Annals of Mathematical Statistics 29, 1958.

Weights and biases of linear and convolutional layers are uniform within 1 / sqrt(fan in), as
PyTorch draws them: K. He et al. Delving Deep into Rectifiers. ICCV 2015, with a gain of 1 /
sqrt(3). All other parameters are those of a new network, such as the ones and zeros of a
normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from fl.api import Network, Tree, keyed

WEIGHT_STREAM = keyed.stream_number("fresh weights")


def keyed_normal(key: Tensor, stream: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Draw numbers of a normal distribution with mean 0 and deviation 1, float64 [..., *shape].

    Args:
        key: int64 [...].
        stream: A number that tells apart several draws by one key.
        shape: The shape of the draw of each key.
    """
    angle = keyed.uniform(keyed.derive_keys(key, stream), 0, shape) * 2 * math.pi
    length = (-2 * (1 - keyed.uniform(keyed.derive_keys(key, stream), 1, shape)).log()).sqrt()
    return length * angle.cos()


def constant_parameters(network: Network) -> dict[str, Tensor]:
    """Parameters that are equal in every new network, by name, in host memory."""
    params = network.init(0)["params"]
    return {name: tensor for name, tensor in params.items() if _uniform_bound(name, params) is None}


def parameter_sampler(network: Network) -> Callable[[Tensor, Tree], dict[str, Tensor]]:
    """Return a function that draws the parameters of a new network.

    It takes a key and what `constant_parameters` returned, on the key's device, and returns the
    parameters by name.
    """
    example = network.init(0)["params"]
    bounds = {name: _uniform_bound(name, example) for name in example}

    def sample(key: Tensor, constants: Tree) -> dict[str, Tensor]:
        params: dict[str, Tensor] = {}
        for number, (name, tensor) in enumerate(example.items()):
            bound = bounds[name]
            if bound is None:
                params[name] = constants[name]
                continue
            draw = keyed.uniform(keyed.derive_keys(key, WEIGHT_STREAM), number, tuple(tensor.shape))
            params[name] = ((2 * draw - 1) * bound).to(tensor.dtype)
        return params

    return sample


def _uniform_bound(name: str, params: dict[str, Tensor]) -> float | None:
    """Return the bound of a parameter's uniform distribution; None for a constant one."""
    owner = params.get(f"{name.removesuffix('bias')}weight") if name.endswith("bias") else None
    tensor = params[name] if owner is None else owner
    return 1 / math.sqrt(tensor[0].numel()) if tensor.dim() > 1 else None
