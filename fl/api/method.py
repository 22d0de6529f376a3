"""What a federated method is: a few pure functions over trees.

Everything of a `Pass` is written for ONE client; the engine decides whether it runs for one client
after another or for all of them at once. Only `Method.aggregate` sees the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fl.api import protocols
from fl.api.alteration import Alteration
from fl.api.network import Network
from fl.api.protocols import Aggregate as Aggregate
from fl.api.protocols import Batch as Batch
from fl.api.protocols import View as View
from fl.api.task import Task
from fl.api.tasks.classification import CLASSIFICATION
from fl.api.term import AdaptiveTerm, Forward, Term
from fl.api.training import Training
from fl.api.trees import Tree, without
from fl.base.declaration import MethodDeclaration as MethodDeclaration
from fl.base.declaration import declaration_of as declaration_of


@dataclass(frozen=True)
class BuildContext:
    """What a method is built for: the network, how it trains, how many classes and clients.

    clients: all of them, whose ids run from 0; away: how many of them take part in no round; shape:
    of one input; seed: the run's, for what a method draws before round 1; terms: loss terms that
    the study adds to the method's own, see `fl.api.recipe`; alterations: what it does to
    features in training, see `fl.api.alteration`; task: of the data set.
    shapes: where samples have several inputs, of one of each by its name, and then ``shape`` is ();
    tokens: those of them that are whole numbers to be looked up.
    lacking: where clients differ in modality, for each modality the names of the weights that its
    clients do not hold, for the method that aggregates over all of them.
    at_server: where the server holds labelled samples of its own, how `Method.aggregate` trains on
    them; None where it holds none, and before there is data.
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
        """How many clients may take part in rounds."""
        return self.clients - self.absent_clients


@dataclass(frozen=True)
class Refresh:
    """What a pass adapts now and then, on samples drawn for it: the weights of kernels, say.

    every: steps from one to the next; first: the step of the round after which it comes first.
    batches: how many batches of the client's training samples it looks at. adapt: the work tree.
    """

    interval: int
    first_step: int
    batch_count: int
    look: protocols.RefreshLook
    adapt: protocols.Adapt

    def is_due_after(self, steps: int) -> bool:
        """Whether it comes after that many steps of a round."""
        return steps >= self.first_step and (steps - self.first_step) % self.interval == 0

    def count_in_round(self, steps: int) -> int:
        """How often it comes in a round of that many steps."""
        return sum(map(self.is_due_after, range(1, steps + 1)))


@dataclass(frozen=True)
class Sampling:
    """Which samples a pass sees in a round, and for how long.

    split: whose samples, or those of several (``train+val``); a client that has none of it takes no
    step. due: in which rounds the pass takes place. epochs: how long the pass is;
    None: as the run's training settings say. steps: of round 1, 2, ..., in place of epochs; 0
    leaves the pass out of that round. repeat: how often each batch comes in a row. per_class: in
    place of batches of the run's size, that many samples of every class, ordered by class; where a
    client has fewer of one, all of them, and what repeats weighs nothing. keyed: batches have keys
    though the network is not random.
    """

    split: str = "train"
    epochs: int | None = None
    steps: protocols.Steps | None = None
    steps_per_batch: int = 1
    per_class: int | None = None
    needs_keys: bool = False
    is_active: protocols.RoundFilter = lambda round_: True


@dataclass(frozen=True)
class Pass:
    """One pass over a client's data in a round: it begins, takes steps (loss, update), and ends.

    sampling: which samples, and how many steps. refreshes: what happens beside the steps.
    reference: what batches bring as ``batch["reference"]``, computed for them or, where that costs
    less, looked up (`fl.engine.loader`).
    """

    begin: protocols.Begin
    loss: protocols.Loss
    update: protocols.Update
    end: protocols.End
    sampling: Sampling = field(default_factory=Sampling)
    refreshes: tuple[Refresh, ...] = ()
    reference: protocols.ReferenceModels | None = None


@dataclass(frozen=True)
class Sweep:
    """One look at every sample of a client, once and without gradients, and the sum of what it saw.

    split: whose samples are seen, see `Sampling`; a client that has none of it has seen zeros. due:
    in which rounds it takes place. most: of a client's samples so many at most, drawn anew in every
    round.
    """

    look: protocols.SweepLook
    end: protocols.SweepEnd
    split: str = "train"
    is_active: protocols.RoundFilter = lambda round_: True
    max_samples: int | None = None


@dataclass(frozen=True)
class MeanBased:
    """Marks an `Method.aggregate` that knows uploads by means over them only, whatever the weights.

    A study may then put other uploads, or one in the place of all, before it (`fl.api.uploads`).
    """

    aggregate: Aggregate

    def __call__(self, server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        """As the function that is marked."""
        return self.aggregate(server, clients, uploads, n)


class WeightedAverage(MeanBased):
    """Marks one whose mean is weighted with ``n``.

    The engine may then average groups of clients as they finish and hand over a row for each group,
    so that the uploads of a thousand clients are never in memory together.
    """


VARIABLE_GROUPS = ("params", "buffers")
"""What a network's variables are, and where they are in a server's tree and a client's."""

PERSONAL_PARAMS = "personal_params"
"""Among the parameters of a client: those beside the network's that it keeps to itself, see
`fl.api.recipe`.
"""

REAL = "real"
"""A split: a client's own training samples, also where it trains on others in their place."""

PAYLOAD = "payload"
"""In a client's tree: what the server made for this client alone, and sends it."""

COUNTS = "counts"
"""In every client's tree from the start: its training samples of each class, int64 [classes]; zeros
where the task does not count any.
"""


MODALITY = "modality"
"""In a client's tree, where clients differ in it: the number of its modality, int64."""


@dataclass(frozen=True)
class Phase:
    """The server sends, clients work and answer, the server draws its conclusion.

    passes: what a client does, one after another; the last one's uploads are aggregated.
    aggregate: over the round's participants, see `WeightedAverage`. due: in which rounds it happens.
    send: what clients get of the server's tree; None: the whole. payload: what the server makes for
    each of them alone, again in every round.
    everyone: whether all clients that may take part do so, not only those drawn for the round; for
        phases that come before that of every round.
    """

    passes: tuple[Pass | Sweep, ...]
    aggregate: Aggregate
    is_active: protocols.RoundFilter = lambda round_: True
    send: protocols.Send | None = None
    payload: protocols.Payload | None = None
    all_clients: bool = False


@dataclass(frozen=True)
class Predictor:
    """A view that says how it predicts, and what it remembers of a client's own samples.

    variables: the view itself, whose weights are stored. look: what is to be known of each sample
    of the splits in ``remembers``, from which `recall` makes the memory that `predict` is given.
    everybody: whether it serves clients that never take part, too. by_sample: whether what it
    predicts for a sample depends on no other one in ``x``; it may then be given those of several
    clients, or be stacked over clients.
    """

    variables: View
    predict: protocols.Predict
    look: protocols.SampleLook | None = None
    build_memory: protocols.BuildMemory = lambda variables, known: {}
    memory_splits: tuple[str, ...] = ("train",)
    serves_absent_clients: bool = False
    is_per_sample: bool = False

    def __call__(self, server: Tree, client: Tree | None) -> Tree:
        """The view's variables."""
        return self.variables(server, client)


@dataclass(frozen=True)
class ServerWork:
    """Steps that the server computes in the aggregate of a round, so that they can be counted.

    steps: by round, how many. step: one of them, given the server's tree; nothing of it stays.
    """

    steps: Callable[[int], int]
    step: Callable[[Tree], object]


@dataclass(frozen=True)
class Method:
    """A federated method.

    init: the server's tree and a client's, before round 1.
    passes, aggregate, send, payload: the last phase of a round, see `Phase`.
    views: which weights are evaluated, by stage (`fl.base.schema.GLOBAL`,
        `fl.base.schema.PERSONAL`), and where that is not the network's own pass, how: `Predictor`.
    before: phases that come before it in a round, with the same participants.
    trace: what is kept of the server beside weights and scores; trace_clients: the same of the
        stack of all clients. It is no message: no client and no server sees it.
    admit: refuses clients that the method cannot do with.
    by_modality: what it is for clients of each modality, where they differ in it.
    works: what the server computes beside means of what it gets; it decides no number.
    size: the bytes of a client's upload in the last phase; None: those of its tensors.
    """

    init: protocols.Init
    passes: tuple[Pass | Sweep, ...]
    aggregate: Aggregate
    views: Mapping[str, View]
    earlier_phases: tuple[Phase, ...] = ()
    send: protocols.Send | None = None
    payload: protocols.Payload | None = None
    trace: protocols.Trace | None = None
    trace_clients: protocols.Trace | None = None
    check_clients: protocols.CheckClients | None = None
    by_modality: tuple[ModalityMethod, ...] = ()
    server_work: tuple[ServerWork, ...] = ()
    upload_bytes: Callable[[Tree], int] | None = None

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All of a round, in their order."""
        last = Phase(self.passes, self.aggregate, send=self.send, payload=self.payload)
        return (*self.earlier_phases, last)


@dataclass(frozen=True)
class MethodTerm:
    """A term that needs more of its method than a place in the loss: something that the server
    keeps, a phase of its own.

    attach: given the method, whose loss has the term, the method with what the term needs.
    """

    term: Term
    attach: Callable[[Method], Method]

    def __call__(self, forward: Forward) -> Tensor:
        """The term."""
        return self.term(forward)


@dataclass(frozen=True)
class ModalityMethod:
    """A method for the clients of one modality.

    lacking: the names of the weights that they do not hold. separate: whether the modalities share
    nothing, so that each has a server of its own, under its ``name``; else there is one, which
    averages (`WeightedAverage`), each weight over those who hold it.
    """

    name: str
    method: Method
    missing_weights: frozenset[str]
    separate: bool

    def restrict(self, tree: Tree) -> Tree:
        """A tree, or a stack, without the weights that these clients do not hold."""
        return without(tree, self.missing_weights)

    def server_tree(self, server: Tree) -> Tree:
        """What these clients' server is of the run's."""
        return dict(server[self.name]) if self.separate else self.restrict(server)


def training_passes(method: Method) -> tuple[Pass, ...]:
    """The passes of a method that has no sweeps, for what wraps them."""
    passes = tuple(pass_ for pass_ in method.passes if isinstance(pass_, Pass))
    if len(passes) < len(method.passes):
        raise TypeError("the method has a sweep")
    return passes


def single_pass(method: Method) -> Pass:
    """The pass of a method that has one and nothing beside it."""
    [pass_] = training_passes(method)
    return pass_
