"""Trees: nested dicts of tensors, the only form that state takes.

Models, optimizers, servers and clients are trees. They are passed in and returned, never changed in
place (but see `Scratch`). So one piece of code runs for one client or for a stack of them, and
state can be saved as it stands and resumed to the same bits. A *stacked* tree has one leading
client dimension on every leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fl.pytorch import private

Tree = Mapping[str, Any]
"""A nested mapping from text keys to tensors."""

Inputs = Tensor | Mapping[str, Tensor]
"""What a model gets: a tensor [b, ...], or by name one for each of several inputs."""


class Scratch(dict[str, Any]):
    """A tree that nobody reads any more: who gets it may write into the memory of its leaves."""

    @classmethod
    def of(cls, tree: Tree) -> Tree:
        """The tree as scratch, or as it is where numbers share their memory."""
        tensors = leaves(tree)
        apart = len({leaf.data_ptr() for leaf in tensors}) == len(tensors)
        dense = all(leaf.is_contiguous() or 0 not in leaf.stride() for leaf in tensors)
        return cls(tree) if apart and dense else tree


Rate = float | Tensor
"""A learning rate. Compiled programs get it as a tensor, so that a schedule does not recompile; a
stack, where clients have different ones, as one of each client, [K] (`shaped`).
"""


def apply(fn: Callable[..., Tensor], tree: Tree, *others: Tree) -> dict[str, Any]:
    """A tree of the results of ``fn`` over the leaves of trees of one structure."""
    return {
        key: fn(leaf, *(o[key] for o in others))
        if isinstance(leaf, Tensor)
        else apply(fn, leaf, *(o[key] for o in others))
        for key, leaf in tree.items()
    }


def each(fn: Callable[[Tensor], Tensor], inputs: Any) -> Any:
    """``fn`` of inputs: of the one tensor, or of each of several (`Inputs`)."""
    return fn(inputs) if isinstance(inputs, Tensor) else apply(fn, inputs)


def leaves(tree: Tree) -> list[Tensor]:
    """The tensors of a tree, in the order of its keys."""
    tensors: list[Tensor] = []
    for leaf in tree.values():
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        else:
            tensors.extend(leaves(leaf))
    return tensors


def unflatten(tree: Tree, values: Sequence[Tensor]) -> dict[str, Any]:
    """A tree with the structure of ``tree`` and the leaves ``values``, in the order of `leaves`."""
    remaining = iter(values)
    return apply(lambda _: next(remaining), tree)


def nbytes(tree: Tree) -> int:
    """The memory of a tree's tensors, in bytes."""
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves(tree))


def stack(trees: Sequence[Tree]) -> dict[str, Any]:
    """One stacked tree from trees of the same shapes."""
    return apply(lambda *tensors: torch.stack(tensors), trees[0], *trees[1:])


def concatenate(trees: Sequence[Tree]) -> dict[str, Any]:
    """Stacked trees joined along the client dimension; a single one is given back as it is."""
    if len(trees) == 1:
        return dict(trees[0])
    return apply(lambda *tensors: torch.cat(tensors), trees[0], *trees[1:])


def repeat(tree: Tree, count: int) -> dict[str, Any]:
    """A stack of ``count`` copies."""
    return apply(lambda t: t.unsqueeze(0).repeat(count, *[1] * t.dim()), tree)


def take(tree: Tree, index: int | slice | Tensor) -> dict[str, Any]:
    """From a stack: one client (an integer) or a smaller stack (a slice or an index tensor)."""
    if isinstance(index, Tensor):
        return apply(lambda t: rows(t, index), tree)
    return apply(lambda t: t[index], tree)


def rows(tensor: Tensor, index: Tensor) -> Tensor:
    """``tensor[index]``, which for rows of many numbers takes several times as long.

    Args:
        index: Row numbers of any shape, or for each row whether it is wanted.
    """
    if index.dtype == torch.bool:
        return tensor[index]
    picked = tensor.index_select(0, index.reshape(-1).to(tensor.device))
    return picked.reshape((*index.shape, *tensor.shape[1:]))


def put(tree: Tree, index: Tensor, values: Tree) -> dict[str, Any]:
    """The stack, in which the clients at ``index`` are replaced by those of ``values``."""
    return apply(lambda t, v: t.index_copy(0, index, v.to(t.dtype)), tree, values)


def without(tree: Tree, names: Collection[str]) -> dict[str, Any]:
    """The tree without everything that has one of these names, at any depth."""
    return {
        key: leaf if isinstance(leaf, Tensor) else without(leaf, names)
        for key, leaf in tree.items()
        if key not in names
    }


def overlaid(tree: Tree, over: Tree) -> dict[str, Any]:
    """The leaves of both trees; where both have a leaf, that of ``over``."""
    both = dict(tree)
    for key, leaf in over.items():
        inner = not isinstance(leaf, Tensor)
        both[key] = overlaid(both.get(key, {}), leaf) if inner else leaf
    return both


def to(tree: Tree, device: torch.device | str) -> dict[str, Any]:
    """The tree on another device."""
    return apply(lambda t: t.to(device), tree)


def laid_out(tree: Tree, models: Tree) -> dict[str, Any]:
    """The tree, in which a leaf with the key and the shape of one of ``models``, at any depth, lies
    in memory as that one does. Values stay.

    Of several such models one that is not contiguous counts: where gradients are added up, one that
    is may only have taken after the weights.
    """
    layouts: dict[tuple[str, torch.Size], Tensor] = {}
    for key, leaf in _named(models):
        if (key, leaf.shape) not in layouts or not leaf.is_contiguous():
            layouts[key, leaf.shape] = leaf
    return _arranged(tree, layouts)


def _named(tree: Tree) -> Iterator[tuple[str, Tensor]]:
    for key, leaf in tree.items():
        if isinstance(leaf, Tensor):
            yield key, leaf
        else:
            yield from _named(leaf)


def _arranged(tree: Tree, models: Mapping[tuple[str, torch.Size], Tensor]) -> dict[str, Any]:
    arranged: dict[str, Any] = {}
    for key, leaf in tree.items():
        if not isinstance(leaf, Tensor):
            arranged[key] = _arranged(leaf, models)
            continue
        model = models.get((key, leaf.shape), leaf)
        alike = model.stride() == leaf.stride()
        arranged[key] = leaf if alike else torch.empty_like(model, dtype=leaf.dtype).copy_(leaf)
    return arranged


def zeros_like(tree: Tree) -> dict[str, Any]:
    """A tree of zeros of the same shapes."""
    return apply(torch.zeros_like, tree)


def vmap(fn: Callable[..., Any], dims: Sequence[int | None]) -> Callable[..., Any]:
    """`torch.func.vmap` of a function of trees.

    PyTorch's own takes any structure of arguments, which costs as much time as a step of a small
    model; this one calls what that one is made of.

    Args:
        fn: Returns a tree, or a tuple of trees and tensors.
        dims: For each argument 0, to map over dimension 0, or None.
    """

    def call(*arguments: Tree) -> Any:
        _load_rules()
        mapped = [tree for tree, dim in zip(arguments, dims, strict=True) if dim is not None]
        size = len(next(leaf for tree in mapped for leaf in leaves(tree)))
        level = private.begin_vmap(size, "error")
        try:
            inside = [
                dict(tree) if dim is None else apply(_inside(level), tree)
                for tree, dim in zip(arguments, dims, strict=True)
            ]
            results = fn(*inside)
            outside = apply(
                lambda leaf: private.remove_batch_dim(leaf, level, size, 0), _as_tree(results)
            )
        finally:
            private.end_vmap()
        return tuple(outside.values()) if isinstance(results, tuple) else outside

    return call


def _inside(level: int) -> Callable[[Tensor], Tensor]:
    return lambda leaf: private.add_batch_dim(leaf, 0, level)


@cache
def _load_rules() -> None:
    """Load the rules of vmap that PyTorch registers only when it is first used."""
    torch.func.vmap(torch.neg)(torch.zeros(1))


def _as_tree(value: Any) -> Tree:
    if isinstance(value, tuple):
        return {str(place): item for place, item in enumerate(value)}
    return dict(value)


def align(scalars: Tensor, tensor: Tensor) -> Tensor:
    """One number per client, shaped to broadcast against a (stacked) leaf.

    Args:
        scalars: The leading dimensions of ``tensor``: none for one client, ``[K]`` for a stack.
    """
    return scalars.reshape(scalars.shape + (1,) * (tensor.dim() - scalars.dim()))


def shaped(rate: Rate, tensor: Tensor) -> Rate:
    """A rate that multiplies a (stacked) leaf: as it is, or each client's own aligned with it."""
    return align(rate, tensor) if isinstance(rate, Tensor) and rate.dim() else rate


def mean(tree: Tree, weights: Tensor) -> dict[str, Any]:
    """The weighted mean over clients, sum_k w_k t_k / sum_k w_k, of a stacked tree.

    Counters (integer leaves) take their largest value.

    Args:
        weights: w, [K].
    """
    shares = weights / weights.sum()

    def average(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor.amax(0)
        return torch.tensordot(shares.to(tensor.dtype), tensor, dims=1)

    return apply(average, tree)


def squared_distance(tree: Tree, other: Tree) -> Tensor:
    """sum ||a - b||^2 over all leaves of two trees of one structure; a scalar, 0 without leaves."""
    pairs = zip(leaves(tree), leaves(other), strict=True)
    parts = [(a - b).square().sum() for a, b in pairs]
    return torch.stack(parts).sum() if parts else torch.zeros(())
