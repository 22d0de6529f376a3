"""By size: clients with more training samples are selected more often.

Li, Huang, Yang, Wang, Zhang. On the Convergence of FedAvg on Non-IID Data. ICLR 2020.
arXiv:1907.02189.

Scheme I draws clients with probability p_k = n_k / n and then takes the unweighted mean, which is
`weighting: uniform`. It draws with replacement; here no client comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fl.api import ALL_TASKS, BuildContext, Offer, Selection, Tree
from fl.blocks.client_selection import draw


@dataclass(frozen=True)
class BySize:
    """Selection with probabilities proportional to numbers of training samples."""

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""
        return Selection(select)


def select(memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
    """Return clients drawn in proportion to their sizes."""
    weights = offer.sizes[offer.clients]
    return draw(offer.generator, offer.clients, weights, offer.count), {}
