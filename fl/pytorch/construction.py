"""Construction of models under a fixed seed, with every tensor where a run can find it.

The keys of every model add low-rank adapters and choose the weights that are trained. Layers and
weights are named by patterns, such as ``layers.0.*``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl.base.errors import FedloomError, Location
from fl.base.registry import Lora, ModelKeys
from fl.base.units import object_text
from fl.pytorch import torch_internals

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


def check_layers(module: nn.Module) -> None:
    """Refuse layers and tensors of a model that no run can train.

    Args:
        module: The model.

    Raises:
        FedloomError: For compiled layers, for embeddings that change their weights in forward, and
            for tensors that have no size yet, are complex, or lie on another device than the CPU
            where models are built on the CPU.
    """
    for name, layer in module.named_modules(remove_duplicate=False):
        if torch_internals.is_program(layer):
            raise FedloomError(
                f"{f'layer {name} of the model' if name else 'the model'} is a compiled program",
                advice="leave out torch.compile and torch.jit; `execution: {backend: compiled}` "
                "compiles the steps of training",
            )
        is_embedding = isinstance(layer, nn.Embedding | nn.EmbeddingBag)
        if is_embedding and layer.max_norm is not None:
            raise FedloomError(
                f"layer {name} of the model has max_norm, by which it changes its weights in "
                "forward, also in evaluation",
                advice="leave out max_norm, and limit weights by `weight_decay`",
            )
    builds_on_cpu = torch.empty(0).device.type == "cpu"
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            layer = module.get_submodule(name.rpartition(".")[0])
            raise FedloomError(
                f"the tensor {name} of the model has no size before the first input, as its layer "
                f"is a {type(layer).__name__}",
                advice="state the sizes, as in torch.nn.Linear(inputs, outputs)",
            )
        if tensor.is_complex():
            raise FedloomError(
                f"the tensor {name} of the model is {_type_text(tensor)}, and runs compute with "
                "real numbers",
                advice="two real tensors, or torch.view_as_real",
            )
        if builds_on_cpu and tensor.device.type != "cpu":
            raise FedloomError(
                f"the tensor {name} of the model lies on the device {tensor.device}",
                "the CPU; a run moves the model to its device",
            )


def _type_text(tensor: Tensor) -> str:
    """Return the type of a tensor's elements: ``float16``."""
    return str(tensor.dtype).removeprefix("torch.")


def other_types(module: nn.Module) -> list[str]:
    """Return the types other than float32 of a model's weights and buffers, if they have one."""
    tensors = [*module.parameters(), *module.buffers()]
    types = {_type_text(t) for t in tensors if t.is_floating_point()}
    return sorted(types - {"float32"})


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


Slot = tuple[dict[str, Any], str]


def tensor_slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Return the dictionaries of a module that hold each named tensor (several, if shared)."""
    slots: dict[str, list[Slot]] = {}
    first_names: dict[object, str] = {}
    for prefix, layer in module.named_modules():
        for store in torch_internals.variable_dicts(layer):
            for key, tensor in store.items():
                if tensor is None:
                    continue
                name = f"{prefix}.{key}" if prefix else key
                # A tensor that several layers share has the name under which it is found first.
                slots.setdefault(first_names.setdefault(tensor, name), []).append((store, key))
    return slots


def adapt(module: Any, values: Mapping[str, Any]) -> Any:
    """Return a new module after the keys of every model have changed it.

    Without adapters, weights that no pattern of ``trainable`` matches are frozen. With adapters,
    all weights but theirs and the head's are, and ``trainable`` names more that are trained. A
    weight that layers share is named by each of its names.

    Args:
        module: The module, as the model builds it.
        values: The values of the model's keys.

    Raises:
        FedloomError: If the model builds no module, or if a pattern matches nothing.
    """
    if not isinstance(module, nn.Module):
        problem = f"what builds the model returns {object_text(module)}"
        advice = "write `return` before the module" if module is None else ""
        advice = f"`{module.__name__}(...)`" if isinstance(module, type) else advice
        raise FedloomError(problem, "a torch.nn.Module", advice)
    keys = ModelKeys.of(values, Location("model"))
    if keys == ModelKeys():
        return module
    network = module
    if keys.adapter is not None:
        add_lora(network, keys.adapter.lora)
    if keys.trainable is not None:
        named = network.named_parameters(remove_duplicate=False)
        weights = {name: weight for name, weight in named if weight.is_floating_point()}
        trained = matches(keys.trainable, weights, "trainable", "weight of the model")
        if keys.adapter is None:
            network.requires_grad_(False)
        for name in trained:
            weights[name].requires_grad_(True)
    return network


class LoraLinear(nn.Module):
    """A frozen linear layer, to whose weights ``scale * up @ down`` is added.

    ``up`` is 0 at first, so that a new layer computes what the frozen one does.
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(False), alpha / rank
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:
        """The sum of weights, for layers such as attention that read instead of calling it."""
        return self.base.weight + self.scale * (self.up @ self.down)

    @property
    def bias(self) -> Tensor | None:
        """The frozen bias."""
        return self.base.bias

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, [b, ..., out], without making the sum of weights."""
        outputs: Tensor = self.base(x)
        return outputs + self.scale * F.linear(F.linear(x, self.down), self.up)


def add_lora(module: nn.Module, lora: Lora) -> None:
    """Freeze a model and adapt its linear layers; the head is trained.

    The head is the layer that the model names in ``head_layer``, else the linear layer that was
    registered last; `check_head` finds out whether it makes the outputs.

    Args:
        module: The model, which is changed.
        lora: The adapters.

    Raises:
        FedloomError: If a pattern matches no linear layer before the head, or one that shares a
            weight with another layer; if the rank is beyond a layer's size.
    """
    linear = {name: m for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    head = getattr(module, "head_layer", next(reversed(linear), None))
    # A layer that is used twice has two names.
    layers = module.named_modules(remove_duplicate=False)
    linear = {name: m for name, m in layers if isinstance(m, nn.Linear) and name != head}
    adapted_names = matches(
        lora.layers, linear, "adapter.lora.layers", "linear layer before the head"
    )
    _check_ties(module, adapted_names)
    _check_rank({name: linear[name] for name in adapted_names}, lora.rank)
    module.requires_grad_(False)
    if head is not None:
        module.get_submodule(head).requires_grad_(True)
    for name in adapted_names:
        parent, _, key = name.rpartition(".")
        adapted = LoraLinear(linear[name], lora.rank, lora.alpha)
        setattr(module.get_submodule(parent), key, adapted)


def _check_ties(module: nn.Module, layers: Iterable[str]) -> None:
    """Refuse to adapt a layer that shares a weight, which would then have two values."""
    named = list(module.named_parameters(remove_duplicate=False))
    for layer in layers:
        inner = {name: weight for name, weight in named if name.startswith(f"{layer}.")}
        for name, weight in inner.items():
            for second, tensor in named:
                if tensor is weight and second not in inner:
                    raise FedloomError(
                        f"adapter.lora: layer {layer} cannot be adapted, as {name} and {second} "
                        "are one weight",
                        advice=f"`layers` with patterns that do not match {layer}",
                    )


def _check_rank(layers: Mapping[str, nn.Linear], rank: int) -> None:
    """Refuse a rank beyond the smaller side of a layer's matrix."""
    largest = {name: min(layer.in_features, layer.out_features) for name, layer in layers.items()}
    name = min(largest, key=largest.__getitem__)
    if rank > largest[name]:
        layer = layers[name]
        raise FedloomError(
            f"adapter.lora.rank: is {rank}, but the weight of layer {name} is "
            f"{layer.out_features} x {layer.in_features}",
            f"1 to {largest[name]}",
            f"a smaller rank, or `layers` without {name}",
        )


def check_head(adapted_layers: Iterable[str], heads: Iterable[str]) -> None:
    """Raise an error if a layer that makes the outputs was adapted in place of another one.

    Args:
        adapted_layers: Names of the layers that `add_lora` adapted.
        heads: Names of the layers or weights that make the outputs, found by a pass.

    Raises:
        FedloomError: If one of the heads lies in an adapted layer.
    """
    for layer in adapted_layers:
        if any(f"{head}.".startswith(f"{layer}.") for head in heads):
            problem = f"adapter.lora: {layer} makes the outputs, but was not registered last"
            advice = f"set `self.head_layer = {layer!r}` in the model, so that it is trained whole"
            raise FedloomError(problem, advice=advice)


def matches(patterns: Iterable[str], names: Iterable[str], key: str, unit: str) -> list[str]:
    """Return the names that any of the patterns matches, in their order.

    Args:
        patterns: The patterns.
        names: All names.
        key: The config key of the patterns, for the error.
        unit: What a name is of, for the error.

    Raises:
        FedloomError: If a pattern matches none of the names, or if there is no pattern.
    """
    names, patterns = list(names), list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise FedloomError(f"{key}: {pattern!r} matches no {unit}", ", ".join(names) or "none")
    if not patterns:
        raise FedloomError(f"{key}: is empty", ", ".join(names) or "none")
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]
