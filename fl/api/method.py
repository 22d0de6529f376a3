"""A federated method: a few pure functions over trees of tensors.

The functions of a `Pass` are written for ONE client. The engine decides whether it runs them for
one client after another or for all clients at once. Only `Method.aggregate` gets the stack of all
clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from torch import Tensor

from fl.api import protocols
from fl.api.alteration import Alteration
from fl.api.network import Network
from fl.api.protocols import Aggregate as Aggregate
from fl.api.protocols import Batch as Batch
from fl.api.protocols import ClientState, ServerState, Upload, Work
from fl.api.protocols import View as View
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.term import AdaptiveTerm, Forward, Term
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base.declaration import MethodDeclaration as MethodDeclaration
from fl.base.declaration import declaration_of as declaration_of


@dataclass(frozen=True)
class BuildContext:
    """Network, training, classes and clients of a run, from which a method is built.

    Attributes:
        network: The network that is trained.
        training: The run's training settings.
        classes: Number of classes.
        clients: Number of all clients; their ids run from 0.
        shape: Shape of one input, () if samples have several inputs.
        seed: Seed of the run, for random numbers that a method needs before round 1.
        terms: Loss terms that the study adds to those of the method, see `fl.api.recipe`.
        alterations: Alterations of features that the study adds, see `fl.api.alteration`.
        absent_clients: Number of clients that take part in no round.
        task: Task of the data set.
        shapes: Shape of one sample of each input by name, if samples have several inputs.
        tokens: Names of the inputs that are whole numbers for an embedding.
        missing_weights: For each modality, the names of the weights that its clients do not have;
            for a method that aggregates over clients of several modalities, else ().
        server_training: Function by which `Method.aggregate` trains on labelled samples of the
            server; None if the server has no samples, or data is not loaded yet.
    """

    network: Network
    training: Training
    classes: int
    clients: int
    shape: tuple[int, ...] = ()
    seed: int = 0
    terms: tuple[Term | AdaptiveTerm, ...] = ()
    alterations: tuple[Alteration, ...] = ()
    absent_clients: int = 0
    task: Task = CLASSIFICATION
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    tokens: frozenset[str] = frozenset()
    missing_weights: tuple[frozenset[str], ...] = ()
    server_training: protocols.TrainOnServer | None = None

    @property
    def participants(self) -> int:
        """Number of clients that can take part in rounds."""
        return self.clients - self.absent_clients


@dataclass(frozen=True)
class Refresh:
    """Adapt the work tree of a pass at intervals, on extra batches (e.g. weights of kernels).

    Attributes:
        interval: Number of steps between two refreshes.
        first_step: Step of the round after which the first refresh happens.
        batch_count: Number of batches of the client's training samples for one refresh.
        look: Function that computes statistics of these batches.
        adapt: Function that changes the work tree by these statistics.
    """

    interval: int
    first_step: int
    batch_count: int
    look: protocols.RefreshLook
    adapt: protocols.Adapt

    def is_due_after(self, steps: int) -> bool:
        """Whether a refresh follows this number of steps of a round."""
        return steps >= self.first_step and (steps - self.first_step) % self.interval == 0

    def count_in_round(self, steps: int) -> int:
        """Return the number of refreshes in a round of this number of steps."""
        return sum(map(self.is_due_after, range(1, steps + 1)))


@dataclass(frozen=True)
class Sampling:
    """Samples that a pass uses in a round, and the length of the pass.

    Attributes:
        split: Name of a split, or several (``train+val``). A client without samples of it takes no
            step.
        epochs: Number of epochs; None: as the run's training settings say.
        steps: Function from a round to the number of steps, instead of epochs; 0 skips the round.
        steps_per_batch: Number of successive steps on each batch.
        per_class: Number of samples of every class in a batch, ordered by class, instead of batches
            of the run's size. A client with fewer samples of a class uses all of them, and samples
            that repeat have weight 0.
        needs_keys: Whether batches have keys even if the network draws no random numbers.
        is_active: Function from a round to whether the pass takes place in it.
    """

    split: str = "train"
    epochs: int | None = None
    steps: protocols.Steps | None = None
    steps_per_batch: int = 1
    per_class: int | None = None
    needs_keys: bool = False
    is_active: protocols.RoundFilter = lambda round_: True


@dataclass(frozen=True)
class Pass(Generic[Work, Upload]):
    """Pass over one client's data in a round: begin, steps of loss and update, end.

    Attributes:
        begin: Function from the server's and the client's tree to the work tree.
        loss: Function from a batch to a loss.
        update: Function from gradients to the next work tree.
        end: Function from the work tree to the client's next tree and its upload.
        sampling: Samples and number of steps.
        refreshes: Adaptations at intervals between steps.
        reference: Function that computes ``batch["reference"]`` by models that stay fixed in the
            pass. The engine may compute it once and look it up afterwards (`fl.engine.loader`).
    """

    begin: protocols.Begin[Work]
    loss: protocols.Loss
    update: protocols.Update[Work]
    end: protocols.End[Upload]
    sampling: Sampling = field(default_factory=Sampling)
    refreshes: tuple[Refresh, ...] = ()
    reference: protocols.ReferenceModels | None = None


@dataclass(frozen=True)
class Sweep:
    """Sum of a function over all samples of a client, each used once and without gradients.

    Attributes:
        look: Function from a batch to a tree of sums.
        end: Function from the totals to the client's next tree and its upload.
        split: Name of the split, see `Sampling`; totals are zeros for a client without samples.
        is_active: Function from a round to whether the sweep takes place in it.
        max_samples: Largest number of samples of a client, drawn at random in every round.
    """

    look: protocols.SweepLook
    end: protocols.SweepEnd
    split: str = "train"
    is_active: protocols.RoundFilter = lambda round_: True
    max_samples: int | None = None


@dataclass(frozen=True)
class MeanBased(Generic[ServerState]):
    """Mark of a `Method.aggregate` that uses uploads only through a mean over clients.

    A study can then transform the uploads, or replace their mean by another rule
    (`fl.api.uploads`).

    Attributes:
        aggregate: The function.
    """

    aggregate: Aggregate[ServerState]

    def __call__(
        self, server: Any, clients: Any, uploads: Any, n: Tensor
    ) -> tuple[ServerState, Any]:
        """Call the function."""
        return self.aggregate(server, clients, uploads, n)


class WeightedAverage(MeanBased[ServerState]):
    """Mark of a `Method.aggregate` that uses uploads only through their mean weighted by ``n``.

    The engine can then average groups of clients as they finish, and give one row for each group to
    the function. So the uploads of a thousand clients are never in memory together.
    """


VARIABLE_GROUPS: Final = ("params", "buffers")
"""Keys of a network's variables in its tree, in the server's tree and in a client's."""

PERSONAL_PARAMS: Final = "personal_params"
"""Key of parameters that a client trains in addition to the network's, see `fl.api.recipe`."""

SHARED_PARAMS: Final = "shared_params"
"""Key of parameters that all train and share in addition to the network's, see `fl.api.recipe`."""

REAL: Final = "real"
"""Split of a client's own training samples, for methods that train on synthetic samples too."""

PAYLOAD: Final = "payload"
"""Key in a client's tree: what the server computes and sends for this client only."""

COUNTS: Final = "counts"
"""Key in every client's tree: its number of training samples by class, int64 [classes].

Zeros if the task has no class for each sample.
"""

MODALITY: Final = "modality"
"""Key in a client's tree if clients differ in modality: the number of its modality, int64."""


@dataclass(frozen=True)
class Phase:
    """Exchange in a round: the server sends, clients compute and upload, the server aggregates.

    Attributes:
        passes: Passes and sweeps of a client, one after another; uploads of the last one are
            aggregated.
        aggregate: Function over the uploads of the round's participants, see `WeightedAverage`.
        is_active: Function from a round to whether the phase takes place in it.
        send: Function from the server's tree to the part that clients get; None: the whole tree.
        payload: Function that computes what each client gets in addition, in every round.
        all_clients: Whether all clients that can take part do so, not only those drawn for the
            round. Only for `Method.earlier_phases`.
    """

    passes: tuple[Pass | Sweep, ...]
    aggregate: Aggregate
    is_active: protocols.RoundFilter = lambda round_: True
    send: protocols.Send | None = None
    payload: protocols.Payload | None = None
    all_clients: bool = False


@dataclass(frozen=True)
class Predictor:
    """View with its own prediction rule, which can use a memory of a client's own samples.

    Attributes:
        variables: The view; its weights are stored.
        predict: Function from variables, memory and inputs to outputs.
        look: Function that computes what the memory needs of each sample.
        build_memory: Function from these values to the memory.
        memory_splits: Splits whose samples are in the memory.
        serves_absent_clients: Whether it also predicts for clients that never take part.
        is_per_sample: Whether the outputs of a sample depend on no other sample in ``x``. The
            engine may then predict for several clients in one call.
    """

    variables: View
    predict: protocols.Predict
    look: protocols.SampleLook | None = None
    build_memory: protocols.BuildMemory = lambda variables, values: {}
    memory_splits: tuple[str, ...] = ("train",)
    serves_absent_clients: bool = False
    is_per_sample: bool = False

    def __call__(self, server: Any, client: Any) -> Any:
        """Return the variables of the view."""
        return self.variables(server, client)


@dataclass(frozen=True)
class ServerWork:
    """Training steps of the server in a round, declared so that their cost can be counted.

    Attributes:
        steps: Function from a round to the number of steps.
        step: Function that computes one such step from the server's tree; its result is not used.
    """

    steps: Callable[[int], int]
    step: Callable[[Any], object]


@dataclass(frozen=True)
class Method(Generic[ServerState, ClientState, Work, Upload]):
    """A federated method.

    Its type names the classes of its states, see `fl.api.state`: the server's, a client's, and the
    work and the upload of its pass, if it has one (`single_pass`).

    Attributes:
        init: Function from the first weights to the server's tree and a client's, before round 1.
        passes: Passes and sweeps of the last phase of a round, see `Phase`.
        aggregate: Function over the uploads of the last phase.
        views: Function by stage (`fl.base.schema.GLOBAL`, `fl.base.schema.PERSONAL`) that returns
            the weights to evaluate, or a `Predictor` if prediction is not a pass of the network.
        earlier_phases: Phases before the last one in a round, with the same participants.
        send: Function from the server's tree to the part that clients get; None: the whole tree.
        payload: Function that computes what each client gets in addition.
        trace: Function from the server's tree to values that are stored for analyses.
        trace_clients: Function from the stack of all clients to values that are stored. It is no
            message: neither clients nor the server get them.
        check_clients: Function that refuses clients which the method cannot train.
        server_work: Training steps of the server, for counting only; changes no result.
        upload_bytes: Function from an upload to its bytes; None: the bytes of its tensors.
    """

    init: protocols.Init[ServerState, ClientState]
    passes: tuple[Pass[Any, Any] | Sweep, ...]
    aggregate: Aggregate[ServerState]
    views: Mapping[str, View]
    earlier_phases: tuple[Phase, ...] = ()
    send: protocols.Send | None = None
    payload: protocols.Payload | None = None
    trace: protocols.Trace | None = None
    trace_clients: protocols.Trace | None = None
    check_clients: protocols.CheckClients | None = None
    server_work: tuple[ServerWork, ...] = ()
    upload_bytes: Callable[[Tree], int] | None = None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases of a round in their order."""
        last = Phase(self.passes, self.aggregate, send=self.send, payload=self.payload)
        return (*self.earlier_phases, last)


@dataclass(frozen=True)
class MethodTerm:
    """Loss term that also changes its method, for example by a server state or another phase.

    Attributes:
        term: The term of the loss.
        attach: Function from the method whose loss has the term to the changed method.
    """

    term: Term
    attach: Callable[[Method], Method]

    def __call__(self, forward: Forward) -> Tensor:
        """Return the value of the term."""
        return self.term(forward)


def training_passes(
    method: Method[Any, Any, Work, Upload],
) -> tuple[Pass[Work, Upload], ...]:
    """Return the passes of a method without sweeps.

    Raises:
        TypeError: If the method has a sweep.
    """
    passes = tuple(pass_ for pass_ in method.passes if isinstance(pass_, Pass))
    if len(passes) < len(method.passes):
        raise TypeError("the method has a sweep")
    return passes


def single_pass(method: Method[Any, Any, Work, Upload]) -> Pass[Work, Upload]:
    """Return the pass of a method that has exactly one pass and no sweep.

    Raises:
        TypeError: If the method has a sweep.
        ValueError: If it has several passes, or none.
    """
    [pass_] = training_passes(method)
    return pass_
