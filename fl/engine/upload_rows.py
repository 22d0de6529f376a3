"""Uploads of clients as rows of numbers, for what changes them before the server averages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, BuildContext, MeanBased, Method, Pass, Sweep
from fl.api.trees import Tree
from fl.engine.state import returned_states


def reason_against_rows(method: Method, context: BuildContext) -> str:
    """Return why a method's server needs more than the mean of the uploads of one phase.

    Args:
        method: The method.
        context: What it was built from.

    Returns:
        The reason; empty if it does not.
    """
    if not isinstance(method.aggregate, MeanBased):
        return "its server does more than average what clients send"
    if method.earlier_phases:
        return "its clients send in more than one phase of a round"
    if method.payload is not None:
        return "its server makes something for each client alone"
    if any(isinstance(pass_, Sweep) for pass_ in method.passes):
        return "its clients send what they see, not what they train"
    if context.missing_weights:
        return "clients differ in modality, and do not send the same weights"
    return ""


@dataclass(frozen=True)
class UploadLayout:
    """Layout of an upload as a row of numbers: its floating-point leaves, one after another.

    Attributes:
        leaves: The leaves of the upload of a client that took no step, in order.
        server_paths: By index of a leaf that is a weight from the server, its path in the server's
            tree. A row holds the change of these leaves.
        scaling: Name of a floating-point scalar in the upload that is no weight; empty without one.
            Servers multiply by such a number (FedNova's path) or divide by it (FedFA's share), so a
            changed row would not fit it.
    """

    leaves: tuple[Tensor, ...]
    server_paths: Mapping[int, tuple[str, ...]]
    scaling: str = ""

    @classmethod
    def of(cls, method: Method, context: BuildContext) -> UploadLayout:
        """Return the layout of a method's upload."""
        with torch.no_grad():
            variables = context.network.init(0)
            server, client = returned_states("init", method.init(variables))
            client = {
                **client,
                "id": torch.tensor(0),
                COUNTS: torch.zeros(context.classes, dtype=torch.int64),
            }
            server = method.send(server) if method.send else server
            upload: Tree = {}
            for pass_ in method.passes:
                assert isinstance(pass_, Pass)
                client, upload = pass_.end(server, client, pass_.begin(server, client))
        # Tensors hash by identity: a leaf is found here only if it is the server's own.
        path_by_leaf = {leaf: path for path, leaf in trees.leaf_paths(server)}
        leaves = trees.leaves(upload)
        weight_names = {path[-1] for path, _ in trees.leaf_paths(variables)}
        scaling_names = [
            path[-1]
            for path, leaf in trees.leaf_paths(upload)
            if leaf.is_floating_point() and not leaf.ndim and path[-1] not in weight_names
        ]
        return cls(
            tuple(leaves),
            {
                index: path_by_leaf[leaf]
                for index, leaf in enumerate(leaves)
                if leaf in path_by_leaf
            },
            next(iter(scaling_names), ""),
        )

    @property
    def float_indices(self) -> list[int]:
        """Indices of the leaves that a row contains."""
        return [index for index, leaf in enumerate(self.leaves) if leaf.is_floating_point()]

    @cached_property
    def zeros(self) -> Tensor:
        """A row of zeros, [d]."""
        leaves = [self.leaves[index] for index in self.float_indices]
        return torch.cat([leaf.new_zeros(leaf.numel()) for leaf in leaves])

    @cached_property
    def statistics(self) -> Tensor:
        """Where a row has running statistics of the model, bool [d]."""
        return torch.cat(
            [
                torch.full((self.leaves[index].numel(),), "buffers" in self.server_paths[index])
                for index in self.float_indices
            ]
        )

    @property
    def counter_bytes(self) -> int:
        """Bytes of the leaves that no row contains."""
        float_indices = self.float_indices
        return sum(
            leaf.numel() * leaf.element_size()
            for index, leaf in enumerate(self.leaves)
            if index not in float_indices
        )

    def rows(self, server: Tree, uploads: Tree) -> Tensor:
        """Convert stacked uploads to rows, [K, d]."""
        leaves = trees.leaves(uploads)
        return torch.cat([self._row(server, leaves, i) for i in self.float_indices], dim=1)

    def with_rows(
        self, server: Tree, uploads: Tree, changed_rows: Tensor, is_equal: Tensor
    ) -> Tree:
        """Convert changed rows back to stacked uploads.

        Args:
            server: The tree from which rows are changes.
            uploads: The uploads as clients sent them, stacked.
            changed_rows: The rows after filters and aggregation, [K, d].
            is_equal: Where numbers stay, bool [K, d]: there they are bit for bit those of
                ``uploads``.
        """
        leaves, begin = trees.leaves(uploads), 0
        for index in self.float_indices:
            leaf = leaves[index]
            columns = slice(begin, begin + leaf[0].numel())
            begin = columns.stop
            changed_leaf = changed_rows[:, columns].reshape(leaf.shape).to(leaf.dtype)
            if index in self.server_paths:
                changed_leaf = changed_leaf + _find_leaf(server, self.server_paths[index])
            stays = is_equal[:, columns].reshape(leaf.shape)
            leaves[index] = torch.where(stays, leaf, changed_leaf)
        return trees.unflatten(uploads, leaves)

    def moves(self, newest: Tree, sent: Tree) -> Tensor:
        """Return how the server's weights have changed since they were sent, as rows [K, d].

        Args:
            newest: The tree that is sent now.
            sent: The trees that were sent to K clients, stacked.
        """
        pairs = [
            _find_leaf(newest, path) - _find_leaf(sent, path)
            for index, path in self.server_paths.items()
            if self.leaves[index].is_floating_point()
        ]
        return torch.cat([leaf.reshape(len(leaf), -1) for leaf in pairs], dim=1)

    def _row(self, server: Tree, leaves: Sequence[Tensor], index: int) -> Tensor:
        leaf = leaves[index]
        if index in self.server_paths:
            leaf = leaf - _find_leaf(server, self.server_paths[index])
        return leaf.reshape(len(leaf), -1)


def _find_leaf(tree: Any, path: Sequence[str]) -> Tensor:
    for key in path:
        tree = tree[key]
    assert isinstance(tree, Tensor)
    return tree
