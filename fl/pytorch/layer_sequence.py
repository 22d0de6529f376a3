"""Modules that are plain layers one after another, called once with a whole stack of clients.

If layers are called one by one, each must unwrap its stack and wrap its result again; here the
clients are folded once for the whole model. Neighbouring linear layers, with ReLU between them, are
one step of autograd, whose gradients are written by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fl.pytorch import products, torch_internals
from fl.pytorch.folding import (
    POINTWISE,
    POOLS,
    fold_images,
    folded_convolution,
    linear,
    stacked_product,
    unfold_clients,
)

threshold_backward = torch.ops.aten.threshold_backward.default
"""PyTorch's gradient of ReLU: (slope, outputs, 0) -> the slope where outputs are above 0."""

FOLDED_LAYERS = {nn.Conv2d, nn.BatchNorm2d} | POOLS
"""Layers that take a stack of clients as more channels of one image."""

STACKED_LAYERS = {nn.Flatten, nn.Linear}
"""Layers that take clients as the first dimension."""

SUPPORTED_LAYERS = FOLDED_LAYERS | STACKED_LAYERS | POINTWISE | {nn.Identity}


class LayerSequence:
    """The layers that a module calls one after another.

    Attributes:
        head: The layer whose inputs are the features; None if there is none.

    Args:
        module: The module.
        channels_last: Whether images have channels last on a CPU, see
            `fl.pytorch.folding.fold_layers`.
    """

    def __init__(self, module: nn.Module, channels_last: bool) -> None:
        layers = _with_cheap_relus([*_layers(module)])
        names = {layer: name for name, layer in module.named_modules()}
        self._steps, self._channels_last = [*_steps(layers, names)], channels_last
        self.head: nn.Module | None = None
        self._has_images = any(type(layer) in FOLDED_LAYERS for layer in layers)
        self._folded_names = {
            f"{prefix}.{name}"
            for prefix, layer in module.named_modules()
            for name in ("weight", "bias", "running_mean", "running_var")
            if type(layer) in FOLDED_LAYERS
        }

    @classmethod
    def from_module(cls, module: nn.Module, channels_last: bool) -> LayerSequence | None:
        """Return the layers of a module; None for other modules than sequences of known layers."""
        is_supported = isinstance(module, nn.Sequential) and all(
            map(_is_supported, _layers(module))
        )
        return cls(module, channels_last) if is_supported else None

    def variables(self, x: Tensor, stacks: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the parameters and buffers with which the module takes a stack of inputs.

        Args:
            x: Inputs, [clients, b, ...].
            stacks: Stacked parameters and buffers by name, [clients, ...].

        Returns:
            Variables by name; None if the module cannot be called with these inputs.
        """
        if self._has_images and x.dim() != 5:
            return None
        return {
            name: stack.flatten(0, 1) if name in self._folded_names else stack
            for name, stack in stacks.items()
        }

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the outputs and the inputs of the head, if any, [clients, b, ...]."""
        clients, folded = len(x), False
        features: Tensor | None = None
        for step in self._steps:
            if isinstance(step, DenseLayers) and not folded and _is_dense(x, 3):
                x, inputs = step.outputs(x)
                features = inputs.get(self.head, features)
                continue
            for layer in step.layers if isinstance(step, DenseLayers) else (step,):
                if type(layer) in FOLDED_LAYERS and not folded:
                    x, folded = fold_images(x.movedim(0, 1), self._channels_last), True
                elif type(layer) in STACKED_LAYERS and folded:
                    x, folded = unfold_clients(x, clients).movedim(1, 0), False
                if layer is self.head:
                    features = unfold_clients(x, clients).movedim(1, 0) if folded else x
                x = self._outputs(layer, x, clients)
        return unfold_clients(x, clients).movedim(1, 0) if folded else x, features

    def gradients(
        self,
        variables: Mapping[str, Tensor],
        trained: Collection[str],
        x: Tensor,
        loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, dict[str, Tensor]] | None:
        """Compute losses and their gradients by hand, without autograd.

        Args:
            variables: Parameters by name, [clients, ...].
            trained: Names of the parameters whose gradients are needed.
            x: Inputs, [clients, b, ...].
            loss: Function from outputs, [clients, b, ...], to the loss of each client, [clients],
                and the gradients of the losses by the outputs.

        Returns:
            The losses and the gradients by name; None if this is no sequence of linear layers.
        """
        dense, x = self._dense_layers(x, sample_dim=2)
        return None if dense is None else dense.gradients(variables, trained, x, loss)

    def squared_gradients(
        self, variables: Mapping[str, Tensor], x: Tensor, slopes_of: Callable[[Tensor], Tensor]
    ) -> Tensor | None:
        """Return the squared length of each sample's gradient by the variables, [b].

        Args:
            variables: Parameters by name, of ONE client.
            x: Inputs, [b, ...].
            slopes_of: Function from outputs, [b, ...], to the gradients of each sample's loss by
                its outputs.

        Returns:
            None if this is no sequence of linear layers, or if one is called twice.
        """
        dense, x = self._dense_layers(x, sample_dim=1)
        if dense is None or dense.repeats:
            return None
        return dense.squared_gradients(variables, x, slopes_of)

    def _dense_layers(self, x: Tensor, sample_dim: int) -> tuple[DenseLayers | None, Tensor]:
        """Return the layers as one step, and its inputs; no layers if they are more than that.

        Args:
            x: Inputs of the sequence.
            sample_dim: First dimension of a sample.
        """
        first, *others = self._steps
        if type(first) is nn.Flatten and others:
            x, first, *others = x.flatten(sample_dim), *others
        if others or not isinstance(first, DenseLayers) or not _is_dense(x, sample_dim + 1):
            return None, x
        return first, x

    def _outputs(self, layer: nn.Module, x: Tensor, clients: int) -> Tensor:
        """Return the outputs of one layer for inputs in the form that it takes."""
        if isinstance(layer, nn.Flatten):
            return x.flatten(2)
        if isinstance(layer, nn.Conv2d):
            return folded_convolution(
                layer, self._channels_last, x, layer.weight, layer.bias, clients
            )
        if isinstance(layer, nn.Linear):
            return _linear_on_stack(layer, x)
        outputs: Tensor = type(layer).forward(layer, x)
        return outputs


def _is_dense(x: Tensor, dims: int) -> bool:
    """Whether `DenseLayers` takes inputs of so many dimensions; autocast would choose types."""
    is_plain = x.device.type == "meta" or not torch.is_autocast_enabled(x.device.type)
    return x.dim() == dims and is_plain


class DenseLayers:
    """Linear layers one after another, each with or without a ReLU after it.

    Attributes:
        layers: The layers.
        repeats: Whether a linear layer is called twice.

    Args:
        layers: The layers.
        names: Names of all layers in the module.
    """

    def __init__(self, layers: Sequence[nn.Module], names: Mapping[nn.Module, str]) -> None:
        self.layers = tuple(layers)
        places = [i for i, layer in enumerate(layers) if isinstance(layer, nn.Linear)]
        self._linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
        self._variables = [f"{names[n]}.{v}" for n in self._linear for v in ("weight", "bias")]
        self.repeats = len({*self._linear}) < len(self._linear)
        self._rectified = tuple(end - begin > 1 for begin, end in pairwise([*places, len(layers)]))

    def outputs(self, x: Tensor) -> tuple[Tensor, dict[nn.Module | None, Tensor]]:
        """Return the outputs, and the inputs of each linear layer, [clients, b, ...].

        Args:
            x: Inputs of the first layer, [clients, b, in].
        """
        variables = [v for layer in self._linear for v in (layer.weight, layer.bias)]
        outputs = _DensePass.apply(self._rectified, x, *variables)  # type: ignore[no-untyped-call]
        return outputs[-1], dict(zip(self._linear, (x, *outputs[:-1]), strict=True))

    def gradients(
        self,
        variables: Mapping[str, Tensor],
        trained: Collection[str],
        x: Tensor,
        loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses and their gradients by the trained weights, see `LayerSequence`."""
        tensors = [variables.get(name) for name in self._variables]
        weights: Any = tensors[::2]
        inputs = _dense_inputs(self._rectified, x, weights, tensors[1::2])
        losses, slope = loss(inputs[-1])
        slopes = (*[None] * (len(weights) - 1), slope)
        needs = [name in trained for name in self._variables]
        _, by_call = _dense_gradients(self._rectified, inputs, weights, slopes, False, needs)
        gradients: dict[str, Tensor] = {}
        for name, gradient in zip(self._variables, by_call, strict=True):
            if gradient is not None:  # A layer that is called twice has two gradients.
                before = gradients.get(name)
                gradients[name] = gradient if before is None else before + gradient
        return losses, gradients

    def squared_gradients(
        self, variables: Mapping[str, Tensor], x: Tensor, slopes_of: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Return the squared lengths of the samples' gradients, see `LayerSequence`.

        A sample's gradient by the weights of a layer is the product of two vectors, the gradient by
        the layer's outputs and its inputs. The squared length is that of both, multiplied.
        """
        inputs = [x]
        tensors = [variables.get(name) for name in self._variables]
        weights: Any = tensors[::2]
        biases = tensors[1::2]
        for weight, bias, has_relu in zip(weights, biases, self._rectified, strict=True):
            outputs = linear(inputs[-1], weight, bias)
            inputs.append(outputs.relu() if has_relu else outputs)
        slope, squares = slopes_of(inputs[-1]), torch.zeros_like(x[:, 0])
        for layer in reversed(range(len(weights))):
            if self._rectified[layer]:
                slope = slope * (inputs[layer + 1] > 0)
            factors = inputs[layer].square().sum(1) + (biases[layer] is not None)
            squares = squares + slope.square().sum(1) * factors
            if layer:
                slope = linear(slope, weights[layer].mT, None)
        return squares


class _DensePass(torch.autograd.Function):
    """Pass through `DenseLayers`, one step of autograd in place of one for each layer.

    The outputs of all layers are results, so that the gradients can be differentiated again.
    """

    @staticmethod
    def forward(ctx: Any, rectified: tuple[bool, ...], x: Tensor, *variables: Any) -> Any:
        """Return the outputs of each layer, [clients, b, out], see `_dense_inputs`.

        Args:
            ctx: Values for the backward pass.
            rectified: Whether a ReLU follows, for each layer.
            x: Inputs of the first layer, [clients, b, in].
            variables: Weights and shifts of each layer in turn.
        """
        ctx.set_materialize_grads(False)
        ctx.rectified, weights = rectified, variables[::2]
        inputs = _dense_inputs(rectified, x, weights, variables[1::2])
        ctx.save_for_backward(*inputs, *weights)
        return tuple(inputs[1:])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the loss from those with respect to each layer's outputs."""
        count = len(slopes) + 1
        inputs, weights = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        needs_x, *needs = ctx.needs_input_grad[1:]
        slope, gradients = _dense_gradients(ctx.rectified, inputs, weights, slopes, needs_x, needs)
        return (None, slope, *gradients)


def _dense_inputs(
    rectified: Sequence[bool],
    x: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
) -> list[Tensor]:
    """Return the inputs of each linear layer, and the outputs of the last, [clients, b, ...].

    Args:
        rectified: Whether a ReLU follows, for each layer.
        x: Inputs of the first layer, [clients, b, in].
        weights: Weights of each layer, [clients, out, in].
        biases: Shifts of each layer, [clients, out], or None.
    """
    inputs = [x]
    for weight, bias, has_relu in zip(weights, biases, rectified, strict=True):
        outputs = products.outputs(inputs[-1], weight, bias)
        inputs.append(outputs.relu_() if has_relu else outputs)
    return inputs


def _dense_gradients(
    rectified: Sequence[bool],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    slopes: Sequence[Tensor | None],
    needs_x: bool,
    needs: Sequence[bool],
) -> tuple[Tensor | None, list[Tensor | None]]:
    """Return the gradients of a loss by the inputs and by weights and shifts of each layer in turn.

    Args:
        rectified: Whether a ReLU follows, for each layer.
        inputs: Result of `_dense_inputs`.
        weights: Weights of each layer, [clients, out, in].
        slopes: Gradients by the outputs of each layer as far as the loss uses them otherwise than
            through later layers, [clients, b, out], or None.
        needs_x: Whether the gradient by the inputs is needed.
        needs: Whether those by weights and shifts are needed, for each layer in turn.
    """
    gradients: list[Tensor | None] = []
    slope: Tensor | None = None
    for layer in reversed(range(len(weights))):
        slope = _sum(slope, slopes[layer])
        if slope is None:
            gradients += [None, None]
            continue
        if rectified[layer]:
            slope = threshold_backward(slope, inputs[layer + 1], 0)
        needs_weight, needs_bias = needs[2 * layer : 2 * layer + 2]
        gradients.append(slope.sum(-2) if needs_bias else None)
        gradients.append(products.weight_gradients(slope, inputs[layer]) if needs_weight else None)
        is_used = needs_x or any(needs[: 2 * layer])
        slope = products.input_gradients(slope, weights[layer]) if is_used else None
    return slope, gradients[::-1]


def _sum(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, of which none or one is no gradient."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def _linear_on_stack(layer: nn.Linear, x: Tensor) -> Tensor:
    """Apply stacked linear layers to inputs [clients, b, ..., in]."""
    if x.dim() == 3:
        return stacked_product(x, layer.weight, layer.bias)
    rows = stacked_product(x.flatten(1, -2), layer.weight, layer.bias)
    return rows.reshape(*x.shape[:-1], -1)


def _with_cheap_relus(layers: list[nn.Module]) -> list[nn.Module]:
    """Move each maximum pool before a ReLU, and let a ReLU write into its inputs if it may.

    Results and gradients stay the same: the gradients of these layers do not depend on their
    outputs, into which the ReLU behind them writes.
    """
    for i, (first, second) in enumerate(pairwise(layers)):
        if type(first) is nn.ReLU and type(second) is nn.MaxPool2d:
            layers[i : i + 2] = second, first
    for i, (first, second) in enumerate(pairwise(layers), 1):
        if type(first) in FOLDED_LAYERS and type(second) is nn.ReLU:
            layers[i] = nn.ReLU(inplace=True)
    return layers


def _steps(
    layers: Sequence[nn.Module], names: Mapping[nn.Module, str]
) -> Iterator[nn.Module | DenseLayers]:
    """Yield the layers in the order of calls, with neighbouring linear ones as one."""
    dense: list[nn.Module] = []
    for layer in (*layers, None):
        if type(layer) is nn.Linear or (dense and type(layer) is nn.ReLU):
            dense.append(layer)
            continue
        if dense:
            yield DenseLayers(dense, names)
            dense = []
        if layer is not None:
            yield layer


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of nested sequences in the order of calls."""
    if type(module) is not nn.Sequential or torch_internals.has_hooks(module):
        yield module
        return
    for layer in module:
        yield from _layers(layer)


def _is_supported(layer: nn.Module) -> bool:
    """Whether `LayerSequence` computes the same as the layer."""
    if type(layer) not in SUPPORTED_LAYERS or torch_internals.has_hooks(layer):
        return False
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros"
    if isinstance(layer, nn.BatchNorm2d):
        return layer.momentum is not None
    if isinstance(layer, nn.Flatten):
        return (layer.start_dim, layer.end_dim) == (1, -1)
    return not getattr(layer, "return_indices", False)
