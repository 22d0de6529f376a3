"""What a federated method is: a few pure functions over trees.

Everything of a `Pass` is written for ONE client; the engine decides whether it runs for one client
after another or for all of them at once. Only `Method.aggregate` sees the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fl.network import Network
from fl.training import Training
from fl.trees import Rate, Tree

if TYPE_CHECKING:
    from fl.parts.losses import Adaptive, Term

Batch = Mapping[str, Any]
"""One client's batch: ``x`` [b, ...], ``y`` [b] and ``weight`` [b] (0 leaves a sample out); where
the network is random, also ``key`` [b], see `fl.keyed`; where a pass has reference models, also
``reference``, see `Pass`.
"""

View = Callable[[Tree, Tree | None], dict[str, Any]]
"""(server, client) -> the variables to evaluate; the shared view is asked without a client."""


@dataclass(frozen=True)
class Setting:
    """What a method is built for: the network, how it trains, how many classes and clients.

    clients: those that may take part; shape: of one input; seed: the run's, for what a method draws
    before round 1; terms: loss terms that the study adds to the method's own, see
    `fl.recipe.recipe`.
    """

    network: Network
    training: Training
    classes: int
    clients: int
    shape: tuple[int, ...] = ()
    seed: int = 0
    terms: tuple[Term | Adaptive, ...] = ()


@dataclass(frozen=True)
class Refresh:
    """What a pass adapts now and then, on samples drawn for it: the weights of kernels, say.

    every: steps from one to the next; first: the step of the round after which it comes first.
    batches: how many batches of the client's training samples it looks at.
    look(server, work, batch) -> seen
        For ONE client, without gradients; the batch holds all the samples.
    adapt(work, seen) -> work
        May be called with a leading client dimension on every leaf.
    """

    every: int
    first: int
    batches: int
    look: Callable[[Tree, Tree, Batch], dict[str, Any]]
    adapt: Callable[[Tree, Tree], dict[str, Any]]

    def due(self, steps: int) -> bool:
        """Whether it comes after that many steps of a round."""
        return steps >= self.first and (steps - self.first) % self.every == 0

    def times(self, steps: int) -> int:
        """How often it comes in a round of that many steps."""
        return sum(map(self.due, range(1, steps + 1)))


@dataclass(frozen=True)
class Pass:
    """One pass over a client's data in a round.

    begin(server, client) -> work
        The tree that the pass works on. ``work["params"]`` is what is differentiated.
    loss(server, work, batch) -> (scalar, aux)
        What a step minimises, and a tree that `update` wants (new buffers, say).
    update(server, work, grads, aux, lr) -> work
        One step, given d loss / d params. Elementwise: it may be called with a leading client
        dimension on every leaf of work, grads and aux.
    end(server, client, work) -> (client, upload)
        What the client keeps, and what it sends.
    epochs: how long the pass is; None: as the run's training settings say.
    refreshes: what happens beside the steps.
    reference(server, work, batch) -> tree
        What models that stand still during the pass make of each sample, [b, ...]; without
        gradients. Batches bring it as ``batch["reference"]``, computed for them or, where that
        costs less, looked up (`fl.references`): `work` is then what `begin` gave.
    """

    begin: Callable[[Tree, Tree], dict[str, Any]]
    loss: Callable[[Tree, Tree, Batch], tuple[Tensor, dict[str, Any]]]
    update: Callable[[Tree, Tree, Tree, Tree, Rate], dict[str, Any]]
    end: Callable[[Tree, Tree, Tree], tuple[dict[str, Any], dict[str, Any]]]
    epochs: int | None = None
    refreshes: tuple[Refresh, ...] = ()
    reference: Callable[[Tree, Tree, Batch], dict[str, Any]] | None = None


Aggregate = Callable[[Tree, Tree, Tree, Tensor], tuple[dict[str, Any], dict[str, Any]]]


@dataclass(frozen=True)
class Averaging:
    """Marks an `Method.aggregate` that knows uploads by their mean weighted with ``n`` only.

    The engine may then average groups of clients as they finish and hand over a row for each group,
    so that the uploads of a thousand clients are never in memory together.
    """

    aggregate: Aggregate

    def __call__(
        self, server: Tree, clients: Tree, uploads: Tree, n: Tensor
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """As the function that is marked."""
        return self.aggregate(server, clients, uploads, n)


@dataclass(frozen=True)
class Method:
    """A federated method.

    init(variables) -> (server, client)
        The server's tree, and the tree that every client starts with (the engine adds its ``id``).
    passes: what a client does in a round, one after another; the last one's uploads are
        aggregated.
    aggregate(server, clients, uploads, n) -> (server, clients)
        Over the round's participants: stacked trees, and ``n`` [K], their training samples. See
        `Averaging`.
    views: which weights are evaluated, by stage (`fl.schema.GLOBAL`, `fl.schema.PERSONAL`).
    """

    init: Callable[[Tree], tuple[dict[str, Any], dict[str, Any]]]
    passes: tuple[Pass, ...]
    aggregate: Aggregate
    views: Mapping[str, View]
