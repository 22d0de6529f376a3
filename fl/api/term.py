"""What a loss term is: a function of one client's forward pass.

A method's objective is a sum of terms. Each of them fits any base, and a study can add some to any
method made by `fl.api.recipe`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fl.api.network import Network, Output
from fl.api.protocols import Adapt, SampleLook, Start
from fl.api.protocols import Batch as Batch
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION, classification_loss
from fl.api.trees import Tree


@dataclass(frozen=True)
class Forward:
    """What a term may look at.

    output: the network's pass over the batch in training mode, see `fl.api.network.Output`.
    params: the weights of that pass. shared: the server's tree as it was sent this round; its
    ``params`` are without those that stay local. work: the client's tree of this round, where a
    method keeps what only it knows. batch: the samples, see `Batch`; what `ReferenceTerm` terms
    asked of reference models is in ``batch["reference"]``. personal_params: parameters beside the
    network's, see `fl.api.recipe`. task: whose loss a method minimises, see
    `task_loss`.
    """

    network: Network
    output: Output
    params: Tree
    shared: Tree
    work: Tree
    batch: Batch
    personal_params: Tree = field(default_factory=dict)
    # A default that is no plain value is one that torch 2.11's compiler cannot name.
    task: Task = field(default_factory=lambda: CLASSIFICATION)


class Term(Protocol):
    """A part of what a client minimises."""

    def __call__(self, forward: Forward, /) -> Tensor:
        """For ONE client. Gives a scalar, which is added to the other terms."""


SHARED = "shared"
"""The name of the reference model that the server sent this round."""


class ReferencePass(Protocol):
    """Passes the batch through a reference model in evaluation mode."""

    def __call__(self, model: str, /) -> Output:
        """model: `SHARED`, or the name of one that the method keeps in the client's ``work``."""


class Reference(Protocol):
    """What a term wants to know of reference models."""

    def __call__(self, see: ReferencePass, /) -> dict[str, Tensor]:
        """For ONE client, without gradients. Gives tensors by name, [b, ...] each."""


class AdaptiveLoss(Protocol):
    """A part of what a client minimises that depends on a state."""

    def __call__(self, forward: Forward, state: Tree, /) -> tuple[Tensor, Tree]:
        """For ONE client. Gives a scalar, and what adapting wants to see of the batch."""


@dataclass(frozen=True)
class TappedTerm:
    """A term that looks at the outputs of layers, in ``forward.output.taps``.

    Attributes:
        term: The term.
        taps: The names of the layers.
    """

    term: Term
    taps: tuple[str, ...]

    def __call__(self, forward: Forward) -> Tensor:
        """Return the term of a forward pass."""
        return self.term(forward)


@dataclass(frozen=True)
class ReferenceTerm:
    """A term that compares the model in training with reference models, which stand still.

    Attributes:
        term: The term.
        reference: A function that returns features of reference models.
        taps: The names of layers whose outputs passes return, of all models.
    """

    term: Term
    reference: Reference
    taps: tuple[str, ...] = ()

    def __call__(self, forward: Forward) -> Tensor:
        """The term; ``forward.batch["reference"]`` has what it asked for."""
        return self.term(forward)


@dataclass(frozen=True)
class AdaptiveTerm:
    """A term that adapts as training goes on, by a state of its own that stays with the client.

    name: of its state among those of other terms. start: the state that every client begins with.
    refresh: None adapts after every step, to what the step saw; otherwise see `Periodic`.
    reference: what it asks of reference models. taps: layers whose outputs passes return.
    """

    name: str
    start: Start
    term: AdaptiveLoss
    adapt: Adapt
    refresh: Periodic | None = None
    reference: Reference | None = None
    taps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Periodic:
    """When an `AdaptiveTerm` term adapts, if not after every step, and to what.

    every, first, batches: see `fl.api.method.Refresh`. look: by the model being trained.
    """

    interval: int
    first_step: int
    batch_count: int
    look: SampleLook


def task_loss(forward: Forward) -> Tensor:
    """What the data set's task minimises: cross-entropy, where samples have classes."""
    return forward.task.loss(forward.output.outputs, forward.batch)


def cross_entropy(forward: Forward) -> Tensor:
    """For class labels: the weighted mean over the batch, sum_i w_i CE(z_i, y_i) / sum_i w_i."""
    return classification_loss(forward.output.outputs, forward.batch)
