"""Loss terms: functions of one client's forward pass.

A method's loss is a sum of terms. A study can add terms to any method that is built by
`fl.api.recipe`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fl.api.network import Network, Output
from fl.api.protocols import Adapt, SampleLook, Start
from fl.api.protocols import Batch as Batch
from fl.api.state import Weights
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION, classification_loss
from fl.api.trees import Tree


@dataclass(frozen=True)
class Forward:
    """Forward pass of one client, from which terms are computed.

    Attributes:
        network: The network.
        output: Its pass over the batch in training mode, see `fl.api.network.Output`.
        params: The weights of that pass.
        server: The server's state as it was sent in this round; its ``params`` are without local
            weights.
        work: The state of the client's pass, with the entries of its method.
        batch: The samples, see `Batch`; ``batch["reference"]`` has the features of reference models
            that a `ReferenceTerm` computes.
        personal_params: The client's parameters in addition to the network's, see `fl.api.recipe`.
        shared_params: Parameters in addition to the network's that all clients share.
        task: The task whose loss is minimised, see `task_loss`.
    """

    network: Network
    output: Output
    params: Weights
    server: Any
    work: Any
    batch: Batch
    personal_params: Tree = field(default_factory=dict)
    shared_params: Tree = field(default_factory=dict)
    # A factory, because the compiler of torch 2.11 cannot trace an object as default.
    task: Task = field(default_factory=lambda: CLASSIFICATION)

    @property
    def shared(self) -> Any:
        """Former name of `server`."""
        return self.server


class Term(Protocol):
    """Term of a client's loss."""

    def __call__(self, forward: Forward, /) -> Tensor:
        """Return a scalar for ONE client, which is added to the other terms."""


@runtime_checkable
class WeightTerm(Protocol):
    """Term of the weights alone, whose gradient is known.

    With such terms beside the task's loss, a step of plain layers goes without autograd.
    """

    def __call__(self, forward: Forward, /) -> Tensor:
        """Return a scalar for ONE client."""

    def add_gradient(self, server: Any, work: Any, params: Weights, grads: Weights, /) -> Tensor:
        """Add the gradients of all clients in place, and return the term of each, [clients].

        Args:
            server: The server's state as it was sent; for clients of several runs a stack.
            work: The states of the clients' passes, stacked.
            params: All weights of the clients, stacked.
            grads: Gradients of the weights that are trained, stacked, to which it adds.
        """


SHARED = "shared"
"""Name of the reference model that the server sent in this round."""


class ReferencePass(Protocol):
    """Pass of the batch through a reference model in evaluation mode."""

    def __call__(self, model: str, /) -> Output:
        """Return the output of a reference model.

        Args:
            model: `SHARED`, or the key of a model in the client's work tree.
        """


class Reference(Protocol):
    """Features of reference models that a term compares with."""

    def __call__(self, reference_pass: ReferencePass, /) -> dict[str, Tensor]:
        """Return tensors by name, [b, ...], for ONE client, without gradients."""


class AdaptiveLoss(Protocol):
    """Term of a client's loss that depends on a state."""

    def __call__(self, forward: Forward, state: Tree, /) -> tuple[Tensor, Tree]:
        """Return a scalar and statistics of the batch for `Adapt`, for ONE client."""


@dataclass(frozen=True)
class TappedTerm:
    """Term that uses outputs of layers, in ``forward.output.taps``.

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
    """Term that compares the model in training with reference models, which stay fixed.

    Attributes:
        term: The term.
        reference: A function that returns features of reference models.
        taps: The names of layers whose outputs passes return, of all models.
    """

    term: Term
    reference: Reference
    taps: tuple[str, ...] = ()

    def __call__(self, forward: Forward) -> Tensor:
        """Return the term; ``forward.batch["reference"]`` has the features."""
        return self.term(forward)


@dataclass(frozen=True)
class AdaptiveTerm:
    """Term whose state adapts during training and stays with the client.

    Attributes:
        name: Name of the state.
        start: Function that makes the first state of every client.
        term: The term.
        adapt: Function from state and statistics to the next state.
        refresh: Interval of adaptations; None: after every step, by the statistics of `term`.
        reference: Function that returns features of reference models.
        taps: Names of layers whose outputs passes return.
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
    """Adaptation of an `AdaptiveTerm` at intervals instead of after every step.

    Attributes:
        interval: Number of steps between two adaptations, see `fl.api.method.Refresh`.
        first_step: Step after which the first one happens.
        batch_count: Number of batches of training samples for one adaptation.
        look: Function that computes statistics by the model in training.
    """

    interval: int
    first_step: int
    batch_count: int
    look: SampleLook


def task_loss(forward: Forward) -> Tensor:
    """Loss of the data set's task, such as cross-entropy if samples have classes."""
    return forward.task.loss(forward.output.outputs, forward.batch)


def cross_entropy(forward: Forward) -> Tensor:
    """Weighted mean of the cross-entropy over the batch, sum_i w_i CE(z_i, y_i) / sum_i w_i."""
    return classification_loss(forward.output.outputs, forward.batch)
