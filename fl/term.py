"""What a loss term is: a function of one client's forward pass.

A method's objective is a sum of terms. Each of them fits any base, and a study can add some to any
method made by `fl.recipe.recipe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fl.network import Network, Output
from fl.task import Task
from fl.tasks.classification import CLASSIFICATION
from fl.trees import Tree

Batch = Mapping[str, Any]
"""One client's batch: ``x`` [b, ...], ``y`` [b] (masks: [b, height, width]) and ``weight`` [b] (0
leaves a sample out); where the network is random, or the pass asks for them, also ``key`` [b], see
`fl.keyed`; where a pass has reference models, also ``reference``, see `fl.method.Pass`.
"""


@dataclass(frozen=True)
class Forward:
    """What a term may look at.

    output: the network's pass over the batch in training mode, see `fl.network.Output`.
    params: the weights of that pass. shared: the server's tree as it was sent this round; its
    ``params`` are without those that stay local. work: the client's tree of this round, where a
    method keeps what only it knows. batch: the samples, see `Batch`; what `Beside` terms
    asked of reference models is in ``batch["reference"]``. beside: parameters beside the network's,
    see `fl.recipe.recipe`. task: whose loss a method minimises, see `fl.parts.losses.task_loss`.
    """

    network: Network
    output: Output
    params: Tree
    shared: Tree
    work: Tree
    batch: Batch
    beside: Tree = field(default_factory=dict)
    task: Task = CLASSIFICATION


Term = Callable[[Forward], Tensor]

SHARED = "shared"
"""The name of the reference model that the server sent this round."""

See = Callable[[str], Output]
"""Passes the batch through a reference model in evaluation mode: `SHARED`, or one that the method
keeps in the client's ``work`` under that name.
"""

Reference = Callable[[See], dict[str, Tensor]]
"""What a term wants to know of reference models, by name, [b, ...] each."""


@dataclass(frozen=True)
class Beside:
    """A term that compares the model in training with reference models, which stand still."""

    term: Term
    reference: Reference

    def __call__(self, forward: Forward) -> Tensor:
        """The term; ``forward.batch["reference"]`` has what it asked for."""
        return self.term(forward)


@dataclass(frozen=True)
class Adaptive:
    """A term that adapts as training goes on, by a state of its own that stays with the client.

    name: of its state among those of other terms.
    start(variables) -> state: what every client begins with.
    term(forward, state) -> (scalar, seen): the term, and what adapting wants to see of the batch.
    adapt(state, seen) -> state: may be called with a leading client dimension on every leaf.
    refresh: None adapts after every step, to what the step saw; otherwise see `Periodic`.
    reference: what it asks of reference models.
    """

    name: str
    start: Callable[[Tree], dict[str, Any]]
    term: Callable[[Forward, Tree], tuple[Tensor, dict[str, Any]]]
    adapt: Callable[[Tree, Tree], dict[str, Any]]
    refresh: Periodic | None = None
    reference: Reference | None = None


@dataclass(frozen=True)
class Periodic:
    """When an `Adaptive` term adapts, if not after every step, and to what.

    every, first, batches: see `fl.method.Refresh`. look(variables, batch) -> seen: by the model
    being trained, without gradients.
    """

    every: int
    first: int
    batches: int
    look: Callable[[Tree, Batch], dict[str, Any]]
