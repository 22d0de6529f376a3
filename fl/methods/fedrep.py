"""FedRep: a shared representation, and a head of each client's own that is trained first.

Collins, Hassani, Mokhtari, Shakkottai. Exploiting Shared Representations for Personalized Federated
Learning. ICML 2021. arXiv:2102.07078.

Family: personal layers. Exchanged: body. Local: head. Key: `head_epochs`.

The body is trained for the run's local epochs or steps (the paper: one epoch).

Running statistics of batch normalisation belong to the body, and the paper says nothing about them.
By default, the head's pass, in which the body stands still, leaves them as they were sent, so that
what is averaged has moved only in the body's steps. PFLlib's code goes on from the statistics that
the head's pass has moved.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fl.api import (
    BuildContext,
    Count,
    Method,
    Pass,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    TrainingPass,
    Tree,
    Weights,
    declare,
    recipe,
    training_passes,
    weights_in,
    weights_not_in,
)


class FedRepClient(RecipeClient):
    """State of a client, between its two passes.

    Attributes:
        moved: Buffers as the pass of the head left them, by name.
    """

    moved: Weights


@declare("personal", tasks=("classification", "regression"), modalities=True)
class FedRep:
    """A shared body and a local head.

    Attributes:
        head_epochs: Epochs of the head, with a fixed body, before the body is trained.
        head_steps: Steps of the head, instead of epochs (pFedGraph's code: 80); null: epochs.
        statistics: Pass that changes statistics of batch normalisation: the `body`'s, or `both`.
    """

    head_epochs: Count = 10
    head_steps: Count | None = None
    statistics: Literal["body", "both"] = "body"

    def build(self, context: BuildContext) -> Method:
        """Two passes: the local head, then the shared body."""
        head = context.network.head
        passes = (
            TrainingPass(weights_in(head), self.head_epochs),
            TrainingPass(weights_not_in(head)),
        )
        method = recipe(context, local=weights_in(head), passes=passes)
        first, second = training_passes(method)
        if self.head_steps is not None:
            first = replace(first, sampling=replace(first.sampling, steps=self.steps_of_round))
        if self.statistics == "both":
            first, second = _with_both_statistics(first, second)
        return replace(method, passes=(first, second))

    def steps_of_round(self, round_: int) -> int:
        """Steps of the head, in every round."""
        return self.head_steps or 0


def _with_both_statistics(
    first: Pass[RecipeWork, RecipeUpload], second: Pass[RecipeWork, RecipeUpload]
) -> tuple[Pass[RecipeWork, RecipeUpload], Pass[RecipeWork, RecipeUpload]]:
    """Two passes; the second goes on from the buffers that the first has moved."""

    def end(
        server: RecipeServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[Tree, RecipeUpload]:
        client, upload = first.end(server, client, work)
        return {**client, "moved": work["buffers"]}, upload

    def begin(server: RecipeServer, client: FedRepClient) -> RecipeWork:
        return {**second.begin(server, client), "buffers": client["moved"]}

    def finish(
        server: RecipeServer, client: FedRepClient, work: RecipeWork
    ) -> tuple[Tree, RecipeUpload]:
        client_state, upload = second.end(server, client, work)
        return {name: tree for name, tree in client_state.items() if name != "moved"}, upload

    return replace(first, end=end), replace(second, begin=begin, end=finish)
