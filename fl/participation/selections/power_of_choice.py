"""Power-of-choice: of some random clients, those with the largest losses are selected.

Cho, Wang, Joshi. Towards Understanding Biased Client Selection in Federated Learning. AISTATS 2022.
arXiv:2010.01243 (Client Selection in Federated Learning: Convergence Analysis and Power-of-Choice
Selection Strategies, 2020).

Section 4: d candidates are drawn without replacement with probability p_k = n_k / n; the m with the
largest F_k(w) take part. With `losses: asked` (pow-d) each candidate is sent the model and answers
with its loss on all of its training samples, which is counted. With `losses: last` (rpow-d) the
server takes the mean loss of the steps of a client's last round, which the client sends beside its
upload; it is infinite before. The paper then takes the unweighted mean, which is `weighting:
uniform`. There is no cpow-d, which estimates losses on a batch.

The authors' code of the paper's supplement gives the same clients for the same candidates and
losses, in both forms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from fl.api import ALL_TASKS, BuildContext, Count, FedloomError, Offer, Selection, Training, Tree
from fl.api.participation import LOSS_BYTES
from fl.blocks.client_selection import draw, unknown_losses, with_losses


@dataclass(frozen=True)
class PowerOfChoice:
    """Power-of-choice.

    Attributes:
        candidates: d, clients among which those with the largest losses are selected; by default
            twice as many as take part in a round, or all.
        losses: `asked`: candidates are asked for their losses under the current model; `last`:
            their last training losses count.
    """

    candidates: Count | None = None
    losses: Literal["asked", "last"] = "asked"

    tasks: ClassVar = ALL_TASKS

    def check(self, participants: int, training: Training) -> None:
        """Refuse fewer candidates than are selected, or more than there are."""
        needed = training.participants(participants)
        if self.candidates is not None and not needed <= self.candidates <= participants:
            problem = (
                f"selection.candidates: is {self.candidates}, but {needed} of {participants}"
                " clients take part in a round"
            )
            raise FedloomError(problem, f"{needed} to {participants}", "a smaller `participation`")

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""

        def candidate_clients(offer: Offer) -> np.ndarray:
            count = 2 * offer.count if self.candidates is None else self.candidates
            count = min(max(count, offer.count), len(offer.clients))
            return draw(offer.generator, offer.clients, offer.sizes[offer.clients], count)

        def select_asked(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
            clients = candidate_clients(offer)
            return largest(clients, offer.losses(clients), offer.count), {}

        def select_last(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
            clients = candidate_clients(offer)
            return largest(clients, memory["losses"].numpy()[clients], offer.count), memory

        if self.losses == "asked":
            return Selection(select_asked, asks_clients=True)
        return Selection(select_last, unknown_losses, with_losses, LOSS_BYTES)


def largest(clients: np.ndarray, losses: np.ndarray, count: int) -> np.ndarray:
    """Return the clients with the largest losses; of equal ones, those that come first."""
    order = np.argsort(-losses, kind="stable")
    selected: np.ndarray = clients[order[:count]]
    return selected
