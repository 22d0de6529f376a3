"""A model as a pure function of its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl.trees import Tree


class Network:
    """A module whose weights and buffers are passed in and returned.

    *Variables* are ``{"params": {name: tensor}, "buffers": {name: tensor}}``, named as in the
    module. ``make`` builds the module; its own random initialisation is used, under a seed.
    """

    def __init__(self, make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> None:
        self._make, self._dtype = make, dtype
        self._module = make()
        self.names = {
            "params": [name for name, _ in self._module.named_parameters()],
            "buffers": [name for name, _ in self._module.named_buffers()],
        }

    def init(self, seed: int) -> dict[str, Any]:
        """Freshly initialised variables on the CPU, the same for the same seed on any device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._make()
        module.to(self._dtype)
        return {
            "params": {name: p.detach() for name, p in module.named_parameters()},
            "buffers": {name: b.detach() for name, b in module.named_buffers()},
        }

    def train(self, params: Tree, buffers: Tree, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Outputs in training mode, and the buffers afterwards (running statistics move)."""
        moved = {name: b.clone() for name, b in buffers.items()}
        self._module.train()
        return functional_call(self._module, {**params, **moved}, (x,)), moved

    def eval(self, params: Tree, buffers: Tree, x: Tensor) -> Tensor:
        """Outputs in evaluation mode; nothing changes."""
        self._module.eval()
        return functional_call(self._module, {**params, **buffers}, (x,))
