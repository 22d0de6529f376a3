"""Layers that compute a whole stack of clients at once, faster than `torch.func.vmap` does.

Layers for images work on single channels or groups of channels, so a stack of clients is one model
with more channels. vmap also folds clients into the channels of a convolution. But it scales and
shifts the result of batch normalisation in extra passes over memory, and moves clients to the first
dimension before it pools. Here clients stay folded from layer to layer. In plain models on a CPU,
images also have channels last, which all of these layers compute faster where there are many
channels.

A linear layer is one product that starts from the bias, where vmap multiplies first and then adds.
Its gradient has the memory layout of its weights, where PyTorch's is transposed; reading the two
together would take several times as long (docs/results/benchmarks.md).

Models that are plain layers one after another are called once with a whole stack of clients, see
`fl.pytorch.layer_sequence`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.pytorch import products, torch_internals

CHANNELS_LAST_TYPES = (torch.float32, torch.bfloat16)
"""Types for which PyTorch uses a library that supports channels last."""

POOLS = {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d}
NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}
POINTWISE = {nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid}
PLAIN_LAYERS = {
    nn.Sequential,
    nn.Conv2d,
    nn.Linear,
    nn.Flatten,
    nn.Identity,
    nn.Dropout,
    nn.Dropout2d,
    *(POOLS | NORMS | POINTWISE),
}
"""A plain model consists of these layers only."""

MAX_WEIGHTS_PER_PIXEL = 8
"""With more weights for each number of the images, converting the weights to channels last takes
longer than it saves.
"""


def fold_layers(module: nn.Module) -> bool:
    """Replace the forward functions of a module's layers by functions that fold stacks of clients.

    Args:
        module: The module; it is changed.

    Returns:
        Whether a stack of the module has channels last on a CPU. It has if it has convolutions and
        only `PLAIN_LAYERS`; group normalisation, for example, fails with channels last under vmap
        (torch 2.13).
    """
    layer_types = {type(layer) for layer in module.modules()}
    channels_last = nn.Conv2d in layer_types and layer_types <= PLAIN_LAYERS
    for layer in module.modules():
        if type(layer) is nn.Conv2d:
            layer.forward = partial(_convolution, layer, channels_last)  # type: ignore[method-assign]
        elif type(layer) is nn.Linear:
            layer.forward = partial(_linear, layer)  # type: ignore[method-assign]
        elif type(layer) in POOLS:
            layer.forward = partial(_pool, layer)
        elif type(layer) in NORMS:
            layer.forward = partial(_BATCH_NORM_FORWARD, layer)
    return channels_last


def call_on_stacks(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Call a function of tensors once with whole stacks if all tensors are stacked by vmap.

    Args:
        function: Function that accepts tensors with further dimensions in front.
        tensors: Its arguments.

    Returns:
        The result, as vmap would return it.
    """
    unwrapped = unwrap_stacks(*tensors, client_dim=0)
    if unwrapped is None:
        return function(*tensors)
    level, stacks = unwrapped
    result = torch_internals.call_outside_transforms(function, *stacks)
    return torch_internals.add_batch_dim(result, 0, level)


def sum_of_squares(tensors: Sequence[Tensor], subtrahends: Sequence[Tensor] = ()) -> Tensor:
    """Sum the squares of all numbers of some tensors, or of differences.

    Args:
        tensors: Tensors of one client.
        subtrahends: Tensors of the same shapes, of the client or the same for all, which are
            subtracted; or nothing.

    Returns:
        The sum over all tensors, a scalar.
    """
    unwrapped = unwrap_stacks(*tensors, client_dim=0)
    if unwrapped is None:
        differences = (
            [a - b for a, b in zip(tensors, subtrahends, strict=True)] if subtrahends else tensors
        )
        return torch.stack([d.square().sum() for d in differences]).sum()
    level, stacks = unwrapped
    pairs = [torch_internals.unwrap_batched(tensor, level) for tensor in subtrahends]
    subtrahend_stacks = [s.unsqueeze(0) if dim is None else s.movedim(dim, 0) for s, dim in pairs]

    def of_stacks() -> Tensor:
        differences = stacks
        if subtrahends:
            differences = [a - b for a, b in zip(stacks, subtrahend_stacks, strict=True)]
        result: Tensor = _StackedSquares.apply(*differences)  # type: ignore[no-untyped-call]
        return result

    result = torch_internals.call_outside_transforms(of_stacks)
    return torch_internals.add_batch_dim(result, 0, level)


def squares_of_stacks(stacks: Sequence[Tensor]) -> Tensor:
    """Sum the squares of all numbers of each client, [clients], without gradients."""
    return products_of_stacks(stacks, stacks)


def products_of_stacks(stacks: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """Sum the products of all numbers of each client, [clients], without gradients."""
    pairs = zip(stacks, factors, strict=True)
    return torch.stack([_products(a, b) for a, b in pairs], dim=1).sum(1)


def _products(first: Tensor, second: Tensor) -> Tensor:
    """Sum the products of each client's numbers, [clients]; in one pass, if NumPy does it."""
    rows, factors = first.reshape(len(first), -1), second.reshape(len(second), -1)
    if products.is_by_numpy(rows, factors):
        return products.multiply(rows[:, None], factors[:, :, None]).reshape(-1)
    return (rows * factors).sum(1)


def inner_product(tensors: Sequence[Tensor], factors: Sequence[Tensor]) -> Tensor:
    """Sum the products of all numbers of some tensors of one client with those of as many factors.

    Args:
        tensors: Tensors of one client.
        factors: Tensors of the client, of the same shapes.

    Returns:
        The sum over all tensors, a scalar.
    """
    unwrapped = unwrap_stacks(*tensors, *factors, client_dim=0)
    if unwrapped is None:
        pairs = zip(tensors, factors, strict=True)
        return torch.stack([(a * b).sum() for a, b in pairs]).sum()
    level, stacks = unwrapped
    result = torch_internals.call_outside_transforms(_StackedProducts.apply, *stacks)
    return torch_internals.add_batch_dim(result, 0, level)


class _StackedProducts(torch.autograd.Function):
    """`inner_product` of stacks, whose gradient takes fewer operators than that of a product."""

    @staticmethod
    def forward(ctx: Any, *stacks: Tensor) -> Tensor:
        """Return the sums, [clients]; the second half of the stacks are the factors."""
        ctx.save_for_backward(*stacks)
        count = len(stacks) // 2
        return products_of_stacks(stacks[:count], stacks[count:])

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, which can be differentiated again."""
        stacks = ctx.saved_tensors
        count = len(stacks) // 2
        return tuple(
            factor * _align(grad_output, factor) if is_needed else None
            for factor, is_needed in zip(
                (*stacks[count:], *stacks[:count]), ctx.needs_input_grad, strict=True
            )
        )


def _align(scalars: Tensor, stack: Tensor) -> Tensor:
    """Return one number per client in a shape that multiplies a stack."""
    return scalars.view(-1, *[1] * (stack.dim() - 1))


def gradient_of_stacks(
    loss: Callable[[Sequence[Tensor]], tuple[Tensor, Any]],
    weights: Sequence[Tensor],
    differentiable: bool = False,
) -> tuple[list[Tensor], Any] | None:
    """Compute each client's gradient of a loss by its weights, by one pass back for all clients.

    Inside `torch.func.grad`, layers would not be folded.

    Args:
        loss: Function from weights to a scalar for one client, and further results.
        weights: Weights of one client.
        differentiable: Whether a later gradient flows through the result, to weights that require
            one.

    Returns:
        The gradients and the further results; None if vmap does not stack all weights.
    """
    unwrapped = unwrap_stacks(*weights, client_dim=0)
    if unwrapped is None:
        return None
    level, stacks = unwrapped
    differentiable = differentiable and torch.is_grad_enabled()

    def leaf_of(stack: Tensor) -> Tensor:
        if differentiable and stack.requires_grad:
            return stack.view_as(stack)
        return stack.detach().requires_grad_()

    leaves = torch_internals.call_outside_transforms(lambda: [*map(leaf_of, stacks)])

    def slopes_of(total: Tensor) -> Sequence[Tensor]:
        # Weights that the loss does not use have the gradient 0, as in `torch.func.grad`.
        if not total.requires_grad:
            return [torch.zeros_like(leaf) for leaf in leaves]
        slopes: tuple[Tensor, ...] = torch.autograd.grad(
            total, leaves, create_graph=differentiable, materialize_grads=True
        )
        return slopes

    with torch.enable_grad():
        value, further = loss([torch_internals.add_batch_dim(leaf, 0, level) for leaf in leaves])
        total = torch_internals.unwrap_batched(value, level)[0].sum()
        slopes = torch_internals.call_outside_transforms(slopes_of, total)
    return [torch_internals.add_batch_dim(slope, 0, level) for slope in slopes], further


class _StackedSquares(torch.autograd.Function):
    """`sum_of_squares` of stacks, whose gradient takes fewer operators than that of `torch.pow`."""

    @staticmethod
    def forward(ctx: Any, *stacks: Tensor) -> Tensor:
        """Return the sums, [clients]."""
        ctx.save_for_backward(*stacks)
        return squares_of_stacks(stacks)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, which can be differentiated again."""
        double = 2 * grad_output
        return tuple(
            stack * _align(double, stack) if is_needed else None
            for stack, is_needed in zip(ctx.saved_tensors, ctx.needs_input_grad, strict=True)
        )


def _convolution(layer: nn.Conv2d, channels_last: bool, x: Tensor) -> Tensor:
    """Forward function of a convolution."""
    can_fold = layer.padding_mode == "zeros" and x.dim() == 4
    unwrapped = unwrap_stacks(x, layer.weight, layer.bias) if can_fold else None
    if unwrapped is None:
        return nn.Conv2d.forward(layer, x)
    level, (x, weight, bias) = unwrapped
    clients = len(weight)
    outputs = folded_convolution(
        layer, channels_last, x, _flatten_clients(weight), _flatten_clients(bias), clients
    )
    return _unfold_and_wrap(outputs, clients, level)


def folded_convolution(
    layer: nn.Conv2d,
    channels_last: bool,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    clients: int,
) -> Tensor:
    """Apply a stack of convolutions as one convolution with more groups.

    Args:
        layer: The layer, for stride, padding, dilation and groups.
        channels_last: Whether images may have channels last.
        x: Images as for `fold_images`.
        weight: Weights, [clients * out, in / groups, height, width].
        bias: Shifts, [clients * out], or None.
        clients: Number of clients.

    Returns:
        Outputs, [b, clients * out, ...].
    """
    is_conversion_worthwhile = weight.numel() < MAX_WEIGHTS_PER_PIXEL * x.numel()
    options: Any = layer.stride, layer.padding, layer.dilation, layer.groups * clients
    x = fold_images(x, channels_last and is_conversion_worthwhile)
    return F.conv2d(x, weight, bias, *options)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """Forward function of a linear layer."""
    can_stack = x.dim() == 2
    unwrapped = unwrap_stacks(x, layer.weight, layer.bias, client_dim=0) if can_stack else None
    if unwrapped is None:
        return nn.Linear.forward(layer, x)
    level, stacks = unwrapped
    outputs = torch_internals.call_outside_transforms(stacked_product, *stacks)
    return torch_internals.add_batch_dim(outputs, 0, level)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W' + b, like `torch.nn.functional.linear`, with one product for a whole stack.

    Args:
        x: Inputs, [b, in] or [in].
        weight: Weights W, [out, in].
        bias: Shifts b, [out], or None.

    Returns:
        Outputs, [b, out] or [out].
    """
    can_stack = x.dim() <= 2 and weight.dim() == 2
    unwrapped = unwrap_stacks(x, weight, bias, client_dim=0) if can_stack else None
    if unwrapped is None:
        return F.linear(x, weight, bias)
    level, (inputs, weights, biases) = unwrapped

    def of_stacks() -> Tensor:
        rows = inputs if inputs.dim() == 3 else inputs.unsqueeze(-2)
        outputs = stacked_product(rows, weights, biases)
        return outputs if inputs.dim() == 3 else outputs.squeeze(-2)

    return torch_internals.add_batch_dim(
        torch_internals.call_outside_transforms(of_stacks), 0, level
    )


def stacked_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W' + b for each client.

    Args:
        x: Inputs, [clients, b, in].
        weight: Weights W, [clients, out, in].
        bias: Shifts b, [clients, out], or None.

    Returns:
        Outputs, [clients, b, out].
    """
    if x.device.type != "meta" and torch.is_autocast_enabled(x.device.type):
        # Autocast chooses types for each operation, backward as well.
        return products.outputs(x, weight, bias)
    outputs: Tensor = _StackedProduct.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    return outputs


class _StackedProduct(torch.autograd.Function):
    """`stacked_product` whose gradients have the memory layout of inputs and weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return the product."""
        ctx.save_for_backward(x, weight)
        return products.outputs(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, which can be differentiated again."""
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            products.input_gradients(grad_output, weight) if needs_x else None,
            products.weight_gradients(grad_output, x) if needs_weight else None,
            grad_output.sum(-2) if needs_bias else None,
        )


def _pool(layer: nn.Module, x: Tensor) -> Any:
    """Forward function of a pooling layer."""
    pool = type(layer).forward
    unwrapped = unwrap_stacks(x) if x.dim() == 4 else None
    if unwrapped is None:
        return pool(layer, x)
    level, (x,) = unwrapped
    if type(layer) is nn.MaxPool2d and not layer.return_indices and _is_pooled_faster_last(x):
        # The result has the layout that it would have otherwise, for the next layer's sake.
        pooled = pool(layer, fold_images(x, channels_last=True)).contiguous()
    else:
        pooled = pool(layer, x.flatten(1, 2))
    if isinstance(pooled, tuple):
        return tuple(_unfold_and_wrap(tensor, x.shape[1], level) for tensor in pooled)
    return _unfold_and_wrap(pooled, x.shape[1], level)


def _is_pooled_faster_last(x: Tensor) -> bool:
    """Whether the largest numbers of images are found faster after a copy with channels last.

    PyTorch looks at many channels at once where they are last, and elsewhere at single numbers.

    Args:
        x: Images, [b, clients, channels, height, width].
    """
    is_supported = x.device.type == "cpu" and x.dtype in CHANNELS_LAST_TYPES
    return is_supported and x.stride(2) != 1


def _batch_norm(x: Tensor, *arguments: Any) -> Tensor:
    """Replace `torch.nn.functional.batch_norm`.

    Args:
        x: Inputs.
        arguments: Running mean and variance, weight, bias, and further options.
    """
    unwrapped = unwrap_stacks(x, *arguments[:4])
    if unwrapped is None:
        return F.batch_norm(x, *arguments)
    level, (x, *variables) = unwrapped
    folded = F.batch_norm(x.flatten(1, 2), *map(_flatten_clients, variables), *arguments[4:])
    return _unfold_and_wrap(folded, x.shape[1], level)


def _flatten_clients(stack: Any) -> Any:
    """Reshape [clients, channels, ...] to [clients * channels, ...]; None stays None."""
    return stack if stack is None else stack.flatten(0, 1)


def unwrap_stacks(
    x: Tensor, *variables: Tensor | None, client_dim: int = 1
) -> tuple[int, list[Any]] | None:
    """Return the stacks behind tensors that vmap shows as one client's.

    Args:
        x: The first tensor.
        variables: Further tensors, or None.
        client_dim: Dimension of the clients in the result for x.

    Returns:
        The level of vmap, and the stacks: x [b, clients, channels, ...], the others [clients, ...].
        None if vmap does not stack all tensors, or is not the only active transform.
    """
    level = None if torch.compiler.is_compiling() else torch_internals.only_vmap()
    if level is None:
        return None
    stacks: list[Tensor | None] = []
    for tensor in (x, *variables):
        if tensor is None:
            stacks.append(None)
            continue
        stack, dim = torch_internals.unwrap_batched(tensor, level)
        if dim is None:
            return None
        new_dim = 0 if stacks else client_dim
        stacks.append(stack if dim == new_dim else stack.movedim(dim, new_dim))
    return level, stacks


def fold_images(x: Tensor, channels_last: bool) -> Tensor:
    """Fold clients into the channels of images.

    Args:
        x: Images, [b, clients, channels, height, width], or folded already.
        channels_last: Whether the result has channels last on a CPU, if PyTorch's library for the
            type supports that.

    Returns:
        Images, [b, clients * channels, height, width].
    """
    channels_last = channels_last and x.device.type == "cpu" and x.dtype in CHANNELS_LAST_TYPES
    # This order of steps copies the images at most once.
    if x.dim() == 5 and channels_last and x.stride(1) != x.shape[2] * x.stride(2):
        x = x.movedim((1, 2), (-2, -1)).contiguous().movedim((-2, -1), (1, 2))
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    return (x.flatten(1, 2) if x.dim() == 5 else x).contiguous(memory_format=memory_format)


def unfold_clients(x: Tensor, clients: int) -> Tensor:
    """Reshape [b, clients * channels, ...] to [b, clients, channels, ...]."""
    unfolded: Tensor
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        # By these steps a gradient that must be copied has channels last, too.
        unfolded = x.movedim(1, -1).unflatten(-1, (clients, -1))
        return unfolded.movedim((-2, -1), (1, 2))
    unfolded = x.unflatten(1, (clients, -1))
    return unfolded


def _unfold_and_wrap(x: Tensor, clients: int, level: int) -> Tensor:
    return torch_internals.add_batch_dim(unfold_clients(x, clients), 1, level)


def _with_functions(method: Callable[..., Any], **functions: Callable[..., Any]) -> FunctionType:
    """Copy a method of PyTorch, with functions of `torch.nn.functional` replaced."""
    names = {**method.__globals__, "F": SimpleNamespace(**functions)}
    return FunctionType(method.__code__, names, method.__name__, method.__defaults__)


_BATCH_NORM_FORWARD = _with_functions(torch_internals.BatchNorm.forward, batch_norm=_batch_norm)
