"""What each function of a method, a term and an alteration is called with, and what it gives.

Trees are those of `fl.api.trees`: nested dicts of tensors. *For ONE client* means that no leaf has
a client dimension; the engine may still call the function under `torch.func.vmap`, for all clients
at once, so it must not read a tensor's value into Python. *Stacked* means that every leaf begins
with a dimension of clients. No function changes what it is given, but see `consumes_gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fl.api.trees import Rate, Tree

Made = TypeVar("Made")

Batch = Mapping[str, Any]
"""One client's batch: ``x`` [b, ...] (by name, where samples have several inputs), ``y`` [b]
(masks: [b, height, width]) and ``weight`` [b] (0 leaves a sample out); where the network is random,
or the pass asks for them, also ``key`` [b], see `fl.pytorch.keyed`; where a pass has reference
models, also ``reference``, see `ReferenceModels`. What more it has is for the task's loss: hand a
changed batch on as ``{**batch, ...}``.
"""


# When, and for how long


class RoundFilter(Protocol):
    """In which rounds something takes place."""

    def __call__(self, round_: int, /) -> bool:
        """round_: 1, 2, ..."""


class Steps(Protocol):
    """How long a pass is in a round."""

    def __call__(self, round_: int, /) -> int:
        """round_: 1, 2, ...; gives the number of steps, 0 where the pass is left out."""


# A pass: what a client trains


class Begin(Protocol):
    """The tree that a pass works on."""

    def __call__(self, server: Tree, client: Tree, /) -> Tree:
        """For ONE client. server: what it was sent; client: its own tree.

        Gives the work tree, whose ``params`` are what is differentiated.
        """


class Loss(Protocol):
    """What a step minimises."""

    def __call__(self, server: Tree, work: Tree, batch: Batch, /) -> tuple[Tensor, Tree]:
        """For ONE client. server: what it was sent; work: its work tree.

        Gives a scalar, and ``aux``, a tree that the update wants: new buffers, say.
        """


class Update(Protocol):
    """One step, given the gradient."""

    def __call__(self, server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate, /) -> Tree:
        """Elementwise: leaves of work, grads and aux may all be stacked.

        grads: of the loss, shaped as ``work["params"]``; aux: what the loss gave beside its scalar;
        lr: the round's learning rate, a number or a scalar tensor. Gives the next work tree.
        """


def consumes_gradients(update: Made) -> Made:
    """Mark an update that is the last to read the gradients: it gets them as
    `fl.api.trees.Scratch`, so that the weights it gives may lie in their memory.
    """
    setattr(update, "consumes_gradients", True)  # noqa: B010 - functions have no such attribute of their own
    return update


def is_consuming_gradients(update: Update) -> bool:
    """Whether an update is marked so; one that calls a marked one is not."""
    return getattr(update, "consumes_gradients", False)


class End(Protocol):
    """What a client keeps of a pass, and what it sends."""

    def __call__(self, server: Tree, client: Tree, work: Tree, /) -> tuple[Tree, Tree]:
        """For ONE client. client: its tree before the pass; work: its work tree after it.

        Gives its next tree, and the upload.
        """


class ReferenceModels(Protocol):
    """What models that stand still during a pass make of each sample."""

    def __call__(self, server: Tree, work: Tree, batch: Batch, /) -> Tree:
        """For ONE client, without gradients. work: as it was when the pass began, or later.

        Gives leaves [b, ...].
        """


class RefreshLook(Protocol):
    """What a refresh sees of the samples drawn for it."""

    def __call__(self, server: Tree, work: Tree, batch: Batch, /) -> Tree:
        """For ONE client, without gradients. batch: all the samples at once."""


class Adapt(Protocol):
    """What follows from what was seen: of a work tree, or of a state."""

    def __call__(self, state: Tree, seen: Tree, /) -> Tree:
        """Leaves of both may be stacked. Gives the next state, of the same shape."""


# A sweep: a look at every sample of a client


class SweepLook(Protocol):
    """What a sweep sees of some samples."""

    def __call__(self, server: Tree, client: Tree, sent: Tree, batch: Batch, /) -> Tree:
        """For ONE client, without gradients.

        sent: the upload of the pass before in the same phase (a model just trained, say), {}
        where there is none. Gives sums over the samples, in which each counts ``batch["weight"]``,
        1 or 0.
        """


class SweepEnd(Protocol):
    """What a client keeps of a sweep, and what it sends."""

    def __call__(self, server: Tree, client: Tree, sent: Tree, seen: Tree, /) -> tuple[Tree, Tree]:
        """For ONE client. seen: the sum of all looks; the others as for `SweepLook`.

        Gives its next tree, and the upload.
        """


# The server


class Init(Protocol):
    """What a method starts from."""

    def __call__(self, variables: Tree, /) -> tuple[Tree, Tree]:
        """variables: the network's, ``params`` and ``buffers``.

        Gives the server's tree, and the tree that every client starts with (the engine adds its
        ``id`` and its class counts).
        """


class Aggregate(Protocol):
    """What the server concludes from uploads."""

    def __call__(
        self, server: Tree, clients: Tree, uploads: Tree, n: Tensor, /
    ) -> tuple[Tree, Tree]:
        """clients, uploads: those of the K participants, stacked; n: their training samples, [K].

        Gives the server's next tree, and the clients' next trees, stacked.
        """


class Combine(Protocol):
    """One upload in the place of all of a round."""

    def __call__(self, rows: Tensor, n: Tensor, /) -> Tensor:
        """rows: the uploads, [K, d]; n: their weights in the mean, [K]. Gives a row, [d]."""


class TrainOnServer(Protocol):
    """A pass over the samples that the server itself holds."""

    def __call__(self, pass_: Any, tree: Tree, round_: int, /) -> Tree:
        """pass_: a `fl.api.method.Pass`, for which the server is one more client, with ``tree`` as
        its own and nothing sent to it, and takes as many epochs or steps as clients would; round_:
        1, 2, ...

        Gives the tree that the pass's end gives.
        """


class Send(Protocol):
    """What clients get of the server's tree."""

    def __call__(self, server: Tree, /) -> Tree:
        """server: the whole tree. Gives the part that passes see."""


class Payload(Protocol):
    """What the server makes for one client alone."""

    def __call__(self, server: Tree, client: Tree, /) -> Tree:
        """For ONE client. Gives what passes find in its tree under `fl.api.method.PAYLOAD`."""


class CheckClients(Protocol):
    """Whether a method can do with what clients hold."""

    def __call__(self, counts: Tensor, clients: Tensor, /) -> None:
        """Raises `FedloomError` if it cannot.

        counts: training samples of every client by class, int64 [clients, classes]; clients: the
        ids of those that may take part.
        """


# What is evaluated and kept


class View(Protocol):
    """The variables to evaluate."""

    def __call__(self, server: Tree, client: Tree | None, /) -> Tree:
        """client: its tree; the shared view is asked without one. Gives ``params``, ``buffers``."""


class Predict(Protocol):
    """How a view predicts."""

    def __call__(self, variables: Tree, memory: Tree, x: Any, /) -> Tensor:
        """For ONE client. memory: what it recalls; x: inputs, [b, ...].

        Gives outputs [b, classes]: scores of which the largest wins and whose softmax are
        probabilities.
        """


class SampleLook(Protocol):
    """What a model finds in samples."""

    def __call__(self, variables: Tree, batch: Batch, /) -> Tree:
        """For ONE client, without gradients. variables: the network's, ``params`` and ``buffers``.

        For a view: leaves [b, ...], what is to be known of each sample. For a term: what adapting
        wants to see, any tree.
        """


class BuildMemory(Protocol):
    """What a view remembers of a client's own samples."""

    def __call__(self, variables: Tree, known: Mapping[str, Tree], /) -> Tree:
        """For ONE client. known: by split, what was found of all its samples, [n, ...] each; {}
        where nothing looks.
        """


class Trace(Protocol):
    """What is kept of every evaluated round: small, of one shape."""

    def __call__(self, tree: Tree, /) -> dict[str, Tensor]:
        """tree: the server's, or the stack of all clients in host memory. Gives tensors by name."""


# Terms and alterations


class Start(Protocol):
    """What every client begins with, made from the first weights."""

    def __call__(self, variables: Tree, /) -> Tree:
        """variables: the network's, ``params`` and ``buffers``."""


class Apply(Protocol):
    """How features are altered."""

    def __call__(
        self, layer: str, features: Tensor, batch: Batch, state: Tree, /
    ) -> tuple[Tensor, Tree]:
        """For ONE client. features: what the layer gives, [b, ...], in the run's precision; state:
        the alteration's own, {} without one.

        Gives what the next layer gets in their place, of the same shape, and what adapting wants to
        see. Random numbers are drawn by ``batch["key"]`` [b] (`fl.pytorch.keyed`), which no other
        alteration or layer has. Samples with ``batch["weight"]`` 0 fill up a batch and should
        change no other.
        """


class ChangeBatch(Protocol):
    """What a pass is to see in place of a batch."""

    def __call__(self, batch: Batch, /) -> Batch:
        """For ONE client. Gives other inputs, mixed labels (`fl.api.mixed_labels`), or under a key
        of its own what `Apply` is to know at every layer. ``batch["key"]`` no other alteration has.
        Reference models see samples as they are.
        """
