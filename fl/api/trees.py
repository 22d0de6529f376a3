"""Trees: nested dicts of tensors, which hold all state.

Models, optimizers, servers and clients are trees. They are arguments and results, and are never
changed in place (`Scratch` is the exception). So the same code runs for one client or for a stack
of clients, and state can be saved and resumed to the same bits. Every leaf of a *stacked* tree
begins with a dimension of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from fl.pytorch import folding, torch_internals

Tree = Mapping[str, Any]
"""A nested mapping from text keys to tensors."""

AnyTree = TypeVar("AnyTree", bound=Tree)
"""A tree whose class the result of a function has too (`fl.api.state`)."""

Inputs = Tensor | Mapping[str, Tensor]
"""Inputs of a model: a tensor [b, ...], or a mapping to one tensor for each of several inputs."""


class Scratch(dict[str, Any]):
    """Gradients that their owner no longer needs: a function may write into their memory.

    Attributes:
        in_place: Whether the optimizer may also write into the memory of the parameters and of its
            state, because an earlier step of the same pass made them.
    """

    in_place = False

    @classmethod
    def of(cls, tree: Tree, in_place: bool = False) -> Tree:
        """Return the tree as scratch, or unchanged if leaves share memory."""
        tensors = leaves(tree)
        is_disjoint = len({leaf.data_ptr() for leaf in tensors}) == len(tensors)
        is_dense = all(leaf.is_contiguous() or 0 not in leaf.stride() for leaf in tensors)
        return cls._marked(tree, in_place) if is_disjoint and is_dense else tree

    @classmethod
    def _marked(cls, tree: Tree, in_place: bool) -> Scratch:
        """Return a tree and its subtrees as scratch."""
        scratch = cls(
            (key, leaf if isinstance(leaf, Tensor) else cls._marked(leaf, in_place))
            for key, leaf in tree.items()
        )
        scratch.in_place = in_place
        return scratch


Rate = float | Tensor
"""Learning rate, a number or a tensor.

Compiled programs get a tensor, so that a schedule does not recompile them. A stack of clients with
different rates gets one rate for each client, [K] (`align_rate`).
"""


def apply(fn: Callable[..., Tensor], tree: AnyTree, *trees: Tree) -> AnyTree:
    """Return the tree of the results of ``fn`` over the leaves of trees of one structure."""
    results: Any
    if trees:
        results = {
            key: fn(leaf, *(t[key] for t in trees))
            if isinstance(leaf, Tensor)
            else apply(fn, leaf, *(t[key] for t in trees))
            for key, leaf in tree.items()
        }
    else:  # Most maps of a training step are over one tree, and need no generator.
        results = {
            key: fn(leaf) if isinstance(leaf, Tensor) else apply(fn, leaf)
            for key, leaf in tree.items()
        }
    return results


def map_inputs(fn: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    """Return ``fn`` of an input, or of each of several inputs (`Inputs`)."""
    return fn(inputs) if isinstance(inputs, Tensor) else apply(fn, inputs)


def leaves(tree: Tree) -> list[Tensor]:
    """Return the tensors of a tree, in the order of its keys."""
    tensors: list[Tensor] = []
    for leaf in tree.values():
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        else:
            tensors.extend(leaves(leaf))
    return tensors


def names(tree: Tree) -> Iterator[str]:
    """Yield the keys of the tensors of a tree, in the order of `leaves`."""
    for key, leaf in tree.items():
        if isinstance(leaf, Tensor):
            yield key
        else:
            yield from names(leaf)


def leaf_paths(
    tree: Tree, prefix: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Tensor]]:
    """Yield the path and the tensor of each leaf of a tree: ``("params", "0.weight")``."""
    for key, child in tree.items():
        path = (*prefix, key)
        if isinstance(child, Tensor):
            yield path, child
        else:
            yield from leaf_paths(child, path)


def unflatten(tree: AnyTree, values: Sequence[Tensor]) -> AnyTree:
    """Return a tree of the structure of ``tree`` with these leaves, in the order of `leaves`."""
    remaining = iter(values)
    return apply(lambda _: next(remaining), tree)


def nbytes(tree: Tree) -> int:
    """Return the memory of a tree's tensors in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def share_memory(first: Tree, second: Tree) -> bool:
    """Whether a tensor of one tree lies in memory of the other tree."""
    places = {leaf.untyped_storage().data_ptr() for leaf in leaves(first)}
    return any(leaf.untyped_storage().data_ptr() in places for leaf in leaves(second))


def stack(trees: Sequence[AnyTree]) -> AnyTree:
    """Return one stacked tree from trees of the same shapes."""
    return apply(lambda *tensors: torch.stack(tensors), trees[0], *trees[1:])


def concatenate(trees: Sequence[AnyTree]) -> AnyTree:
    """Return stacked trees joined along the client dimension; a single tree is not copied."""
    if len(trees) == 1:
        single: Any = dict(trees[0])
        return single
    return apply(lambda *tensors: torch.cat(tensors), trees[0], *trees[1:])


def repeat(tree: AnyTree, count: int) -> AnyTree:
    """Return a stack of ``count`` copies."""
    return apply(lambda t: t.unsqueeze(0).repeat(count, *[1] * t.dim()), tree)


def take(tree: AnyTree, index: int | slice | Tensor) -> AnyTree:
    """Return one client of a stack (integer), or a smaller stack (slice or index tensor)."""
    if isinstance(index, Tensor):
        return apply(lambda t: rows(t, index), tree)
    return apply(lambda t: t[index], tree)


def rows(tensor: Tensor, index: Tensor) -> Tensor:
    """Return ``tensor[index]``, several times faster for rows of many numbers.

    Args:
        tensor: The rows, [n, ...].
        index: Row numbers of any shape, or a mask, bool [n].
    """
    if index.dtype == torch.bool:
        return tensor[index]
    picked = tensor.index_select(0, index.reshape(-1).to(tensor.device))
    return picked.reshape((*index.shape, *tensor.shape[1:]))


def add(tree: AnyTree, addend: Tree, factor: float = 1.0) -> AnyTree:
    """Return tree + factor addend, in the memory of the tree if that is `Scratch`."""
    if isinstance(tree, Scratch):
        apply(lambda a, b: a.add_(b, alpha=factor), tree, addend)
        return tree
    return apply(lambda a, b: torch.add(a, b, alpha=factor), tree, addend)


def replace_clients(tree: AnyTree, index: Tensor, values: Tree) -> AnyTree:
    """Return the stack with the clients at ``index`` replaced by those of ``values``."""
    return apply(lambda t, v: t.index_copy(0, index, v.to(t.dtype)), tree, values)


def drop(tree: Tree, names: Collection[str]) -> Tree:
    """Return the tree without leaves and subtrees of these names, at any depth."""
    return {
        key: leaf if isinstance(leaf, Tensor) else drop(leaf, names)
        for key, leaf in tree.items()
        if key not in names
    }


def overlay(tree: Tree, top: Tree) -> Tree:
    """Return the leaves of both trees, and those of ``top`` for names in both."""
    union = dict(tree)
    for key, leaf in top.items():
        inner = not isinstance(leaf, Tensor)
        union[key] = overlay(union.get(key, {}), leaf) if inner else leaf
    return union


def to(tree: AnyTree, device: torch.device | str) -> AnyTree:
    """Return the tree on another device; tensors without data (meta) stay as they are."""
    return apply(lambda t: t if t.is_meta else t.to(device), tree)


def match_layout(tree: Tree, models: Tree) -> Tree:
    """Return the tree with the memory layout of leaves of ``models`` of equal key and shape.

    Values stay. If several leaves of ``models`` match, one that is not contiguous counts: where
    gradients are summed, a contiguous leaf may only have the layout of the weights.
    """
    layouts: dict[tuple[str, torch.Size], Tensor] = {}
    for (*_, key), leaf in leaf_paths(models):
        if (key, leaf.shape) not in layouts or not leaf.is_contiguous():
            layouts[key, leaf.shape] = leaf
    return _arranged(tree, layouts)


def _arranged(tree: Tree, models: Mapping[tuple[str, torch.Size], Tensor]) -> Tree:
    arranged: dict[str, Tensor | Tree] = {}
    for key, leaf in tree.items():
        if not isinstance(leaf, Tensor):
            arranged[key] = _arranged(leaf, models)
            continue
        model = models.get((key, leaf.shape), leaf)
        has_layout = model.stride() == leaf.stride()
        arranged[key] = (
            leaf if has_layout else torch.empty_like(model, dtype=leaf.dtype).copy_(leaf)
        )
    return arranged


def zeros_like(tree: AnyTree) -> AnyTree:
    """Return a tree of zeros of the same shapes."""
    return apply(torch.zeros_like, tree)


def vmap(fn: Callable[..., Any], dims: Sequence[int | None]) -> Callable[..., Any]:
    """Return a function of trees mapped over dimension 0, like `torch.func.vmap`.

    PyTorch's function accepts every structure of arguments, which takes as long as a step of a
    small model. This one calls the functions on which PyTorch's is built.

    Args:
        fn: Function that returns a tree, or a tuple of trees and tensors.
        dims: For each argument 0, to map over dimension 0, or None.
    """

    def call(*arguments: Tree) -> Any:
        _load_rules()
        mapped = [tree for tree, dim in zip(arguments, dims, strict=True) if dim is not None]
        size = len(next(leaf for tree in mapped for leaf in leaves(tree)))
        level = torch_internals.begin_vmap(size, "error")
        try:
            inside = [
                dict(tree) if dim is None else apply(_inside(level), tree)
                for tree, dim in zip(arguments, dims, strict=True)
            ]
            results = fn(*inside)
            outside = apply(
                lambda leaf: torch_internals.remove_batch_dim(leaf, level, size, 0),
                _as_tree(results),
            )
        finally:
            torch_internals.end_vmap()
        return tuple(outside.values()) if isinstance(results, tuple) else outside

    return call


def _inside(level: int) -> Callable[[Tensor], Tensor]:
    return lambda leaf: torch_internals.add_batch_dim(leaf, 0, level)


@cache
def _load_rules() -> None:
    """Load the rules of vmap, which PyTorch registers at its first use."""
    torch.func.vmap(torch.neg)(torch.zeros(1))


def _as_tree(value: Any) -> Tree:
    if isinstance(value, tuple):
        return {str(index): item for index, item in enumerate(value)}
    return dict(value)


def align(scalars: Tensor, tensor: Tensor) -> Tensor:
    """Return one number per client in a shape that broadcasts with a (stacked) leaf.

    Args:
        scalars: Of the leading dimensions of ``tensor``: () for one client, [K] for a stack.
        tensor: The leaf.
    """
    return scalars.reshape(scalars.shape + (1,) * (tensor.dim() - scalars.dim()))


def align_rate(rate: Rate, tensor: Tensor) -> Rate:
    """Return a rate in a shape that multiplies a (stacked) leaf."""
    return align(rate, tensor) if isinstance(rate, Tensor) and rate.dim() else rate


def mean(tree: AnyTree, weights: Tensor) -> AnyTree:
    """Return the weighted mean over clients, sum_k w_k t_k / sum_k w_k, of a stacked tree.

    Of counters (integer leaves) it returns the largest value.

    Args:
        tree: t, leaves [K, ...].
        weights: w, [K].
    """
    shares = weights / weights.sum()

    def average(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.amax(0)
        return torch.tensordot(shares.to(tensor.dtype), tensor, dims=1)

    return apply(average, tree)


def squared_norm(tree: Tree) -> Tensor:
    """Return sum ||a||^2 over all leaves of a tree, a scalar."""
    return folding.sum_of_squares(leaves(tree))


def squared_norms(stack: Tree) -> Tensor:
    """Return sum ||a||^2 over all leaves of each client's tree in a stack, [clients]."""
    return folding.squares_of_stacks(leaves(stack))


def squared_distance(first: Tree, second: Tree) -> Tensor:
    """Return sum ||a - b||^2 over all leaves of two trees of one structure, a scalar."""
    tensors = leaves(first)
    return folding.sum_of_squares(tensors, leaves(second)) if tensors else torch.zeros(())


def inner_product(first: Tree, second: Tree) -> Tensor:
    """Return sum <a, b> over all leaves of two trees of one structure, a scalar."""
    return folding.inner_product(leaves(first), leaves(second))


def inner_products(first: Tree, second: Tree) -> Tensor:
    """Return sum <a, b> over all leaves of each client's trees in two stacks, [clients]."""
    return folding.products_of_stacks(leaves(first), leaves(second))


def interpolate(first: AnyTree, second: Tree, share: Tensor) -> AnyTree:
    """Return first + share (second - first) of two trees of one structure.

    Args:
        first: A tree of ONE client, or of a stack.
        second: The other tree.
        share: A scalar, or [clients] for a stack.
    """
    return apply(lambda a, b: torch.lerp(a, b, align(share, a)), first, second)


def gradient(
    loss: Callable[[Tree], tuple[Tensor, Tree]], params: Tree, differentiable: bool = False
) -> tuple[Tree, Tree]:
    """Return the gradient of a loss within a loss, and the loss's second result.

    Weights that the loss does not use have the gradient 0.

    Args:
        loss: Function from parameters to a scalar and a tree, for ONE client.
        params: The parameters.
        differentiable: Whether a later gradient flows through both results; else none does.
    """
    found = folding.gradient_of_stacks(
        lambda ws: loss(unflatten(params, ws)), leaves(params), differentiable
    )
    if found:
        slopes, second = unflatten(params, found[0]), found[1]
    else:
        weights = params if differentiable else apply(Tensor.detach, params)
        slopes, second = torch.func.grad(loss, has_aux=True)(weights)
    if differentiable:
        return slopes, second
    return apply(Tensor.detach, slopes), apply(Tensor.detach, second)
