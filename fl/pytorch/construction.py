"""Construction of models under a fixed seed, with every tensor where a run can find it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from fl.base.errors import FedloomError

NUMPY_SEEDS = 2**32
"""Number of seeds that NumPy's shared generator takes."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the shared generators of PyTorch, NumPy and Python, and restore them afterwards.

    Args:
        seed: The seed; equal seeds give equal numbers in every process.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else range(0)
    numpy_state, python_state = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=devices):
            # `torch.manual_seed` would also seed cards that are not used yet, for good.
            torch.default_generator.manual_seed(seed)
            for device in devices:
                torch.cuda.default_generators[device].manual_seed(seed)
            np.random.seed(seed % NUMPY_SEEDS)
            random.seed(seed)
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(python_state)


def check_tensors(module: nn.Module) -> None:
    """Refuse tensors of a model that are neither parameters nor buffers.

    Such a tensor is not stored with the model and stays on its device and in its precision.
    Tensors that a layer computes from its parameters have a gradient function and may stay.

    Args:
        module: The model.

    Raises:
        FedloomError: If a layer has such a tensor, also in a list, a tuple or a dictionary.
    """
    variables = {*module.parameters(), *module.buffers()}
    for prefix, layer in module.named_modules():
        for key, value in vars(layer).items():
            if any(tensor not in variables for tensor in _constants(value)):
                name = f"{prefix}.{key}" if prefix else key
                raise FedloomError(
                    f"the tensor {name} of the model is neither a parameter nor a buffer, so that "
                    "it is not stored with the model",
                    advice=f"self.register_buffer({key!r}, ...) for a constant, "
                    "or torch.nn.Parameter(...) for a weight",
                )


def _constants(value: object) -> Iterator[Tensor]:
    """Yield the tensors of an attribute that are not computed from others."""
    if isinstance(value, Tensor):
        if value.grad_fn is None:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _constants(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _constants(item)
