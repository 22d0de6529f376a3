"""A PyTorch module as a pure function of its weights, its buffers and its input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from fl import keyed
from fl.errors import FedloomError
from fl.trees import Tree

NOTHING: Mapping[str, Tensor] = {}


class Output(NamedTuple):
    """What a pass through the network gives.

    outputs: [b, classes]; features: what goes into the head, [b, d];
    buffers: the buffers afterwards; taps: what the layers asked for by `Network.tap` gave.
    """

    outputs: Tensor
    features: Tensor
    buffers: dict[str, Tensor]
    taps: Mapping[str, Tensor] = NOTHING


class Network:
    """A module whose weights and buffers are passed in and returned.

    *Variables* are ``{"params": {name: tensor}, "buffers": {name: tensor}}``, named as in the
    module. ``make`` builds the module; its own random initialisation is used, under a seed.

    dtype: of the weights, and of what goes in and comes out. mixed, channels_last: how it computes
    in between, see `fl.training.Training`.

    names: all names, by kind. head: those of the last linear layer, the classifier; the rest is the
    *body*. batch_norm: those of batch normalisation, running statistics included. random: whether
    a pass in training mode draws random numbers (dropout, stochastic depth). of_tokens: whether
    inputs are whole numbers that it looks up.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        dtype: torch.dtype = torch.float32,
        *,
        mixed: bool = False,
        channels_last: bool = False,
    ) -> None:
        self._make, self._dtype = make, dtype
        self._mixed, self._channels_last = mixed, channels_last
        self._module = make()
        self._slots = _slots(self._module)
        self._own = [(kept, k, kept[k]) for slots in self._slots.values() for kept, k in slots]
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
        self._key: Tensor | None = None
        self.random = False
        for stream, name in enumerate(self._layers(*_random_layers())):
            layer = self._module.get_submodule(name)
            layer.forward = partial(self._drop, layer, stream)
            self.random = True
        self._tapping: set[str] = set()
        self._taps: dict[str, Tensor] = {}
        self.of_tokens = bool(self._layers(nn.Embedding))

    def _layers(self, *kinds: type[nn.Module]) -> list[str]:
        return [name for name, layer in self._module.named_modules() if isinstance(layer, kinds)]

    def _of(self, layers: list[str]) -> frozenset[str]:
        owned = [f"{layer}." if layer else "" for layer in layers]
        names = [name for kind in self.names.values() for name in kind]
        return frozenset(name for name in names if name.startswith(tuple(owned)) and owned)

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen = inputs[0]

    def tap(self, layers: Sequence[str]) -> None:
        """Let every pass from now on return what the layers of these names give, `Output.taps`.

        Raises `FedloomError` if the model has no such layer.
        """
        there = [name for name, _ in self._module.named_modules() if name]
        for name in [name for name in layers if name not in self._tapping]:
            if name not in there:
                raise FedloomError(
                    f"layers: the model has no layer {name!r}; allowed: {', '.join(there)}"
                )
            self._module.get_submodule(name).register_forward_hook(partial(self._tapped, name))
            self._tapping.add(name)

    def _tapped(self, name: str, layer: nn.Module, inputs: object, output: object) -> None:
        if not isinstance(output, Tensor):
            raise FedloomError(
                f"layers: {name} gives a {type(output).__name__}; allowed: a layer that gives one "
                "tensor"
            )
        self._taps[name] = output

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
            *(self._given(x), layer.running_mean, layer.running_var, None, None, True),
            *(layer.momentum, layer.eps),
        )
        if not layer.affine:
            return x
        shape = (-1, *[1] * (x.dim() - 2))
        return x * layer.weight.reshape(shape) + layer.bias.reshape(shape)

    def _drop(self, layer: Any, stream: int, x: Tensor) -> Tensor:
        """Dropout of elements, channels or samples, by random numbers of each sample's key."""
        if not layer.training or not layer.p:
            return x
        if self._key is None:
            raise FedloomError(
                f"the model has random layers ({type(layer).__name__}), and the method trains it "
                'without keys; pass key=batch.get("key") to Network.train'
            )
        draw = keyed.uniform(self._key, stream, x.shape[1:][: _random_layers()[type(layer)]])
        keep = (draw >= layer.p).to(x.dtype) / max(1 - layer.p, 1e-12)
        return x * keep.reshape(keep.shape + (1,) * (x.dim() - keep.dim()))

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

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        nested: bool = False,
        key: Tensor | None = None,
    ) -> Output:
        """A pass in training mode: running statistics move.

        nested: say so where a gradient is taken through a gradient, see `_normalise`. key: the
        batch's, where it has one.
        """
        moved = {name: b.clone() for name, b in buffers.items()}
        self._mode(True)
        self._split, self._key = nested, key
        return self._call({**params, **moved}, moved, x)

    def eval(self, params: Tree, buffers: Tree, x: Tensor) -> Output:
        """A pass in evaluation mode: nothing changes."""
        self._mode(False)
        self._split = False
        return self._call({**params, **buffers}, dict(buffers), x)

    def _mode(self, training: bool) -> None:
        # A compiled program must not depend on the mode that was set before.
        if torch.compiler.is_compiling() or self._module.training != training:
            self._module.train(training)

    def _call(self, variables: Tree, buffers: dict[str, Tensor], x: Tensor) -> Output:
        if self._channels_last and x.dim() == 4 and _alone(x):
            x = x.contiguous(memory_format=torch.channels_last)
        # A dict that is there already would outlive a compiled call, with vmapped tensors in it.
        self._taps = {}
        with self._computing(x.device):
            if torch.compiler.is_compiling():
                outputs = functional_call(self._module, dict(variables), (x,))
            else:
                with self._in_place(variables):
                    outputs = self._module(x)
        outputs = self._given(outputs)
        features = outputs if self._seen is None else self._given(self._seen)
        taps = {name: self._given(tensor.flatten(1)) for name, tensor in self._taps.items()}
        # Tensors of a vmapped call must not outlive it.
        self._seen, self._key, self._taps = None, None, {}
        return Output(outputs, features, buffers, taps)

    def _computing(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if self._mixed else nullcontext()

    def _given(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if self._mixed else tensor

    @contextmanager
    def _in_place(self, variables: Tree) -> Iterator[None]:
        """The module with these tensors in place of its own.

        `torch.func.functional_call` does this too, but takes as long for it as a small model for a
        step; compiled, it costs nothing.
        """
        try:
            for name, tensor in variables.items():
                for kept, key in self._slots[name]:
                    kept[key] = tensor
            yield
        finally:
            for kept, key, tensor in self._own:
                kept[key] = tensor


def _alone(x: Tensor) -> bool:
    """Whether a tensor is one client's: in a stack it has no memory format of its own."""
    return not torch.compiler.is_compiling() and not functorch.is_batchedtensor(x)


Slot = tuple[dict[str, Any], str]


def _slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Where a module keeps each named tensor; a shared one is kept in several places."""
    found: dict[int, tuple[str, list[Slot]]] = {}
    for prefix, layer in module.named_modules():
        for kept in (layer._parameters, layer._buffers):
            for key, tensor in kept.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    found.setdefault(id(tensor), (name, []))[1].append((kept, key))
    return dict(found.values())


def _random_layers() -> dict[type[nn.Module], int | None]:
    """Layers that drop parts of a sample, and over how many dimensions after the first they draw:
    elements (None: all), channels (1) or the sample as a whole (0).
    """
    found: dict[type[nn.Module], int | None] = {
        nn.Dropout: None,
        nn.Dropout1d: 1,
        nn.Dropout2d: 1,
        nn.Dropout3d: 1,
    }
    # A model can have torchvision's layers only where it is imported already.
    if torchvision := sys.modules.get("torchvision"):
        found[torchvision.ops.StochasticDepth] = 0
    return found
