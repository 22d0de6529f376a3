"""Protocols of the functions of a method, a term and an alteration: arguments and results.

Trees are those of `fl.api.trees`: nested dicts of tensors. *For ONE client* means that no leaf has
a client dimension. The engine may still call the function under `torch.func.vmap` for all clients
at once, so the function must not read a tensor's value into Python. *Stacked* means that the first
dimension of every leaf is that of clients. No function changes its arguments; `consumes_gradients`
marks the one exception.

Arguments that are states (`fl.api.state`) are `Any` here: a method's function asks for the class of
its method. Results have a type variable, so that a method which adds entries to another one's state
knows the entries that are there: `ServerState`, `ClientState`, `Work` of a pass, `Upload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor
from typing_extensions import TypeVar  # which torch needs too; Python's has defaults from 3.13 on

from fl.api.trees import Rate, Tree

Marked = TypeVar("Marked")
ServerState = TypeVar("ServerState", bound=Tree, default=Tree, covariant=True)
ClientState = TypeVar("ClientState", bound=Tree, default=Tree, covariant=True)
Work = TypeVar("Work", bound=Tree, default=Tree, covariant=True)
Upload = TypeVar("Upload", bound=Tree, default=Tree, covariant=True)

Batch = Mapping[str, Any]
"""Batch of one client.

``x`` [b, ...] are inputs (by name, if samples have several inputs), ``y`` [b] labels (masks are
[b, height, width]) and ``weight`` [b] weights; weight 0 leaves a sample out. ``key`` [b] exists if
the network draws random numbers or the pass asks for keys, see `fl.pytorch.keyed`. ``reference``
exists if the pass has reference models, see `ReferenceModels`. Other keys are for the task's loss:
a function that changes a batch returns ``{**batch, ...}``.
"""


# When, and for how long


class RoundFilter(Protocol):
    """Function that decides in which rounds something takes place."""

    def __call__(self, round_: int, /) -> bool:
        """Whether it takes place.

        Args:
            round_: Number of the round, 1, 2, ...
        """


class Steps(Protocol):
    """Function that returns the number of steps of a pass in a round."""

    def __call__(self, round_: int, /) -> int:
        """Return the number of steps; 0 skips the pass.

        Args:
            round_: Number of the round, 1, 2, ...
        """


# A pass: what a client trains


class Begin(Protocol[Work]):
    """Function that makes the work tree of a pass."""

    def __call__(self, server: Any, client: Any, /) -> Work:
        """Return the work tree of ONE client; the loss is differentiated by its ``params``.

        Args:
            server: What the server sent.
            client: The client's tree.
        """


class Loss(Protocol):
    """Loss of a step."""

    def __call__(self, server: Any, work: Any, batch: Batch, /) -> tuple[Tensor, Tree]:
        """Return the loss of ONE client, a scalar, and a tree ``aux`` for the update.

        Args:
            server: What the server sent.
            work: The client's work tree.
            batch: The client's batch.
        """


class StackGradients(Protocol):
    """Losses of a step and their gradients, computed for all clients at once."""

    def __call__(self, server: Any, work: Any, batch: Batch, /) -> tuple[Tensor, Tree, Tree] | None:
        """Return the losses, [clients], their gradients and ``aux``, as `Loss` and autograd would.

        Args:
            server: What the server sent; for clients of several runs a stack.
            work: The clients' work trees, stacked.
            batch: Their batches, stacked.

        Returns:
            None if autograd has to compute them.
        """


def with_stack_gradients(loss: Loss, gradients: StackGradients) -> Loss:
    """Return a loss whose gradients the engine may ask for, in place of computing them.

    A function that calls this loss has no such gradients.
    """

    def marked_loss(server: Any, work: Any, batch: Batch) -> tuple[Tensor, Tree]:
        return loss(server, work, batch)

    setattr(marked_loss, "stack_gradients", gradients)  # noqa: B010
    return marked_loss


def stack_gradients_of(loss: Loss) -> StackGradients | None:
    """Return the function of `with_stack_gradients`, if the loss has one."""
    return getattr(loss, "stack_gradients", None)


class Update(Protocol[Work]):
    """Step along a gradient."""

    def __call__(self, server: Any, work: Any, grads: Tree, aux: Any, lr: Rate, /) -> Work:
        """Return the next work tree; elementwise, as leaves of all trees may be stacked.

        Args:
            server: What the server sent.
            work: The work tree.
            grads: Gradient of the loss, of the structure of ``work["params"]``.
            aux: The second result of the loss.
            lr: Learning rate of the step, a number or a scalar tensor.
        """


def consumes_gradients(update: Marked) -> Marked:
    """Mark an update that lets its results overwrite the memory of the gradients.

    The update then gets gradients as `fl.api.trees.Scratch`. From the second step of a pass on, the
    weights and the state of the optimizer are overwritten, too. So the update must not keep the
    weights that it gets, without a copy, in another entry of the work tree.
    """
    setattr(update, "consumes_gradients", True)  # noqa: B010
    return update


def is_consuming_gradients(update: Update) -> bool:
    """Whether an update is marked; a function that calls a marked update is not."""
    return getattr(update, "consumes_gradients", False)


class End(Protocol[Upload]):
    """End of a pass: the client's next tree and its upload."""

    def __call__(self, server: Any, client: Any, work: Any, /) -> tuple[Any, Upload]:
        """Return the next tree and the upload of ONE client.

        Args:
            server: What the server sent.
            client: The client's tree before the pass.
            work: The work tree after the pass.
        """


class ReferenceModels(Protocol):
    """Values of each sample by models that stay fixed during a pass."""

    def __call__(self, server: Any, work: Any, batch: Batch, /) -> Tree:
        """Return values of ONE client's batch, without gradients, leaves [b, ...].

        Args:
            server: What the server sent.
            work: The work tree at the begin of the pass, or later.
            batch: The client's batch.
        """


class RefreshLook(Protocol):
    """Statistics of the samples that are drawn for a refresh."""

    def __call__(self, server: Any, work: Any, batch: Batch, /) -> Tree:
        """Return statistics of ONE client's samples, without gradients.

        Args:
            server: What the server sent.
            work: The work tree.
            batch: All samples of the refresh as one batch.
        """


class Adapt(Protocol):
    """Change of a work tree, or of a state, by statistics of samples."""

    def __call__(self, state: Any, statistics: Any, /) -> Any:
        """Return the next state, of the same shapes; leaves may be stacked."""


# A sweep: a look at every sample of a client


class SweepLook(Protocol):
    """Sums over the samples of a batch in a sweep."""

    def __call__(self, server: Any, client: Any, upload: Any, batch: Batch, /) -> Tree:
        """Return sums over ONE client's batch, each sample times its weight, without gradients.

        Args:
            server: What the server sent.
            client: The client's tree.
            upload: Upload of the previous pass in the phase (e.g. a trained model), else {}.
            batch: Some samples; ``batch["weight"]`` is 1 or 0.
        """


class SweepEnd(Protocol):
    """End of a sweep: the client's next tree and its upload."""

    def __call__(self, server: Any, client: Any, upload: Any, totals: Any, /) -> tuple[Any, Any]:
        """Return the next tree and the upload of ONE client.

        Args:
            server: What the server sent.
            client: The client's tree.
            upload: Upload of the previous pass in the phase, else {}.
            totals: Sums of `SweepLook` over all batches.
        """


# The server


class Init(Protocol[ServerState, ClientState]):
    """State of the server and of each client before round 1."""

    def __call__(self, variables: Any, /) -> tuple[ServerState, ClientState]:
        """Return the server's tree, and the tree with which every client starts.

        The engine adds the id and the class counts to each client's tree.

        Args:
            variables: The network's first ``params`` and ``buffers``.
        """


class Aggregate(Protocol[ServerState]):
    """Aggregation of uploads by the server."""

    def __call__(
        self, server: Any, clients: Any, uploads: Any, n: Tensor, /
    ) -> tuple[ServerState, Any]:
        """Return the server's next tree and the participants' next trees, stacked.

        Args:
            server: The server's tree.
            clients: Trees of the K participants, stacked.
            uploads: Their uploads, stacked.
            n: Their numbers of training samples, [K].
        """


class Combine(Protocol):
    """Rule that combines the uploads of a round to one."""

    def __call__(self, rows: Tensor, n: Tensor, /) -> Tensor:
        """Return the combined row, [d].

        Args:
            rows: The uploads, [K, d].
            n: Their weights in the mean, [K].
        """


class TrainOnServer(Protocol):
    """Training pass of the server over its own labelled samples."""

    def __call__(self, pass_: Any, tree: Any, round_: int, /) -> Any:
        """Return the tree that the end of the pass returns.

        The server does the pass like a client to which nothing is sent, for as many epochs or steps
        as a client.

        Args:
            pass_: A `fl.api.method.Pass`.
            tree: Tree in place of a client's tree.
            round_: Number of the round, 1, 2, ...
        """


class Send(Protocol):
    """Part of the server's tree that clients get."""

    def __call__(self, server: Any, /) -> Tree:
        """Return the part that passes get.

        Args:
            server: The whole tree.
        """


class Payload(Protocol):
    """Data that the server computes for a single client."""

    def __call__(self, server: Any, client: Any, /) -> Tree:
        """Return data for ONE client, which passes get in its tree (`fl.api.method.PAYLOAD`).

        Args:
            server: The server's tree.
            client: The client's tree.
        """


class CheckClients(Protocol):
    """Check that a method can train on the samples of all clients."""

    def __call__(self, counts: Tensor, clients: Tensor, /) -> None:
        """Check the clients' samples.

        Args:
            counts: Training samples of every client by class, int64 [clients, classes].
            clients: Ids of clients that can take part.

        Raises:
            FedloomError: If the method cannot train on them.
        """


# What is evaluated and kept


class View(Protocol):
    """Variables that are evaluated."""

    def __call__(self, server: Any, client: Any, /) -> Any:
        """Return ``params`` and ``buffers``.

        Args:
            server: The server's tree.
            client: A client's tree; None for the shared model.
        """


class Predict(Protocol):
    """Prediction of a view."""

    def __call__(self, variables: Any, memory: Any, x: Any, /) -> Tensor:
        """Return outputs of ONE client, [b, classes], whose softmax are probabilities.

        Args:
            variables: The view's ``params`` and ``buffers``.
            memory: The result of `BuildMemory`.
            x: Inputs, [b, ...].
        """


class SampleLook(Protocol):
    """Values that a model computes of samples."""

    def __call__(self, variables: Any, batch: Batch, /) -> Tree:
        """Return values of ONE client's batch, without gradients.

        For a view, leaves [b, ...] for each sample. For a term, any tree for its adaptation.

        Args:
            variables: The network's ``params`` and ``buffers``.
            batch: Samples of the client.
        """


class BuildMemory(Protocol):
    """Memory of a view of a client's own samples."""

    def __call__(self, variables: Any, values: Mapping[str, Any], /) -> Tree:
        """Return the memory of ONE client.

        Args:
            variables: The view's ``params`` and ``buffers``.
            values: By split, the values of all its samples, [n, ...] each; {} without ``look``.
        """


class Trace(Protocol):
    """Values that are stored at every evaluated round: few, and of the same shapes."""

    def __call__(self, tree: Any, /) -> dict[str, Tensor]:
        """Return tensors by name.

        Args:
            tree: The server's tree, or the stack of all clients in host memory.
        """


# Terms and alterations


class Start(Protocol):
    """First state of every client, made from the first weights."""

    def __call__(self, variables: Any, /) -> Tree:
        """Return the first state.

        Args:
            variables: The network's first ``params`` and ``buffers``.
        """


class Apply(Protocol):
    """Alteration of the features of a layer."""

    def __call__(
        self, layer: str, features: Tensor, batch: Batch, state: Any, /
    ) -> tuple[Tensor, Tree]:
        """Return features of ONE client for the next layer, same shape, and data for `Adapt`.

        Args:
            layer: Name of the layer.
            features: Output of the layer, [b, ...], in the run's precision.
            batch: The client's batch. Random numbers come from ``batch["key"]`` [b]
                (`fl.pytorch.keyed`), which differs for each alteration and layer. Samples of weight
                0 fill up a batch and should change no other sample.
            state: State of the alteration, {} without one.
        """


class ChangeBatch(Protocol):
    """Change of the batches of a pass."""

    def __call__(self, batch: Batch, /) -> Batch:
        """Return the changed batch of ONE client.

        It can have other inputs, mixed labels (`fl.api.alteration`), or a key of its own that
        `Apply` reads at every layer. Reference models get the batch without the change.

        Args:
            batch: The batch; ``batch["key"]`` differs for each alteration.
        """
