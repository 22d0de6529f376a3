"""Loss of the shared model over a client's training samples, which joins the client's upload."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    RecipeServer,
    Sweep,
    Tree,
)


class UploadWithLoss(Protocol):
    """Function that makes a client's upload from that of its training and its loss."""

    def __call__(self, server: Any, client: Any, upload: Any, loss: Tensor, /) -> Tree:
        """Return the upload of ONE client.

        Args:
            server: What the server sent.
            client: The client's tree after training.
            upload: The upload of its training.
            loss: F_k(w^t), a scalar; 0 without samples.
        """


def shared_loss_sweep(context: BuildContext, combine: UploadWithLoss) -> Sweep:
    """Return a sweep over the mean loss F_k(w^t) of all training samples.

    The model is the one that the server sent, in evaluation mode, also in a sweep that follows the
    training pass. There, it leaves that pass's batches as they are without it.

    Args:
        context: The context in which the method is built.
        combine: Function that makes the final upload.
    """

    def look(server: RecipeServer, client: Tree, upload: Tree, batch: Batch) -> Tree:
        output = context.network.eval(server["params"], server["buffers"], batch["x"])
        count = batch["weight"].sum()
        return {"loss": context.task.loss(output.outputs, batch) * count, "count": count}

    def end(server: RecipeServer, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Tree]:
        loss = totals["loss"] / totals["count"].clamp(min=1)
        return client, combine(server, client, upload, loss)

    return Sweep(look, end)
