"""A model as a pure function of its weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fl.trees import Tree


class Output(NamedTuple):
    """What a pass through the network gives.

    outputs: [b, classes]; features: what goes into the head, [b, d];
    buffers: the buffers afterwards.
    """

    outputs: Tensor
    features: Tensor
    buffers: dict[str, Tensor]


class Network:
    """A module whose weights and buffers are passed in and returned.

    *Variables* are ``{"params": {name: tensor}, "buffers": {name: tensor}}``, named as in the
    module. ``make`` builds the module; its own random initialisation is used, under a seed.

    names: all names, by kind. head: those of the last linear layer, the classifier; the rest is the
    *body*. batch_norm: those of batch normalisation, running statistics included.
    """

    def __init__(self, make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> None:
        self._make, self._dtype = make, dtype
        self._module = make()
        self.names = {
            "params": [name for name, _ in self._module.named_parameters()],
            "buffers": [name for name, _ in self._module.named_buffers()],
        }
        self.head = self._of(self._layers(nn.Linear)[-1:])
        self.batch_norm = self._of(self._layers(_BatchNorm))
        self._seen: Tensor | None = None
        for name in self._layers(nn.Linear)[-1:]:
            self._module.get_submodule(name).register_forward_pre_hook(self._note)
        self._split = False
        for name in self._layers(_BatchNorm):
            layer = self._module.get_submodule(name)
            layer.forward = partial(self._normalise, layer)

    def _layers(self, kind: type[nn.Module]) -> list[str]:
        return [name for name, layer in self._module.named_modules() if isinstance(layer, kind)]

    def _of(self, layers: list[str]) -> frozenset[str]:
        owned = [f"{layer}." if layer else "" for layer in layers]
        names = [name for kind in self.names.values() for name in kind]
        return frozenset(name for name in names if name.startswith(tuple(owned)) and owned)

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen = inputs[0]

    def _normalise(self, layer: Any, x: Tensor) -> Tensor:
        """Batch normalisation; in two steps, normalising and scaling, where gradients are nested.

        The derivative of a derivative of both in one is wrong under vmap (torch 2.13, found by the
        contract that stacked equals loop); in two steps it is right.
        """
        if not self._split:
            return type(layer).forward(layer, x)
        if layer.num_batches_tracked is not None:
            layer.num_batches_tracked.add_(1)
        x = F.batch_norm(
            *(x, layer.running_mean, layer.running_var, None, None, True),
            *(layer.momentum, layer.eps),
        )
        if not layer.affine:
            return x
        shape = (-1, *[1] * (x.dim() - 2))
        return x * layer.weight.reshape(shape) + layer.bias.reshape(shape)

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

    def train(self, params: Tree, buffers: Tree, x: Tensor, nested: bool = False) -> Output:
        """A pass in training mode: running statistics move.

        nested: say so where a gradient is taken through a gradient, see `_normalise`.
        """
        moved = {name: b.clone() for name, b in buffers.items()}
        self._module.train()
        self._split = nested
        return self._call({**params, **moved}, moved, x)

    def eval(self, params: Tree, buffers: Tree, x: Tensor) -> Output:
        """A pass in evaluation mode: nothing changes."""
        self._module.eval()
        self._split = False
        return self._call({**params, **buffers}, dict(buffers), x)

    def _call(self, variables: Tree, buffers: dict[str, Tensor], x: Tensor) -> Output:
        outputs = functional_call(self._module, dict(variables), (x,))
        features = outputs if self._seen is None else self._seen
        self._seen = None  # A tensor of a vmapped call must not outlive it.
        return Output(outputs, features, buffers)
