"""DivFL: clients are selected whose gradients stand for those of all others.

Balakrishnan, Li, Zhou, Himayat, Smith, Bilmes. Diverse Client Selection for Federated Learning via
Submodular Maximization. ICLR 2022.

The clients S of a round minimise the sum, over all clients k, of the smallest distance
|g_k - g_i| to an i in S, where g are gradients of the shared model (facility location). They are
chosen greedily, one after another. With `sample`, each is the best of some random clients
(stochastic greedy). A client's gradient is that of its mean loss on all of its training samples, in
evaluation mode.

With `gradients: asked` all clients that are there send their gradients in every round. With
`gradients: last` ("no overhead") the last gradient of each client counts, which the server keeps.
It asks those of whom it knows none, all of them in round 1, and then those that are selected,
before they train. Both is counted: with `last`, each participant sends a gradient beside its
upload, as in the authors' released code.

Distances are unweighted, and uploads have the weights of `weighting`, as in that code; its weights
by the number of clients for which one stands are not used there either. It selects by `last`
whatever its key `m_interval` says, unless one client is selected; its greedy is a lazy one, and its
stochastic greedy has `sample: 0.1`. For 200 sets of random gradients its greedy, lazy and
stochastic greedy select the same clients as ours, or others with an equal sum; also in 24 rounds
with `last`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fl.api import ALL_TASKS, BuildContext, Offer, Selection, Share, Tree


@dataclass(frozen=True)
class DivFL:
    """Diverse selection of clients.

    Attributes:
        gradients: `asked`: all clients send their gradients in every round; `last`: the last
            gradients count that clients sent.
        sample: share of the clients among which each next one is sought, drawn at random, at least
            as many as are selected; by default among all.
    """

    gradients: Literal["asked", "last"] = "asked"
    sample: Share | None = None

    tasks: ClassVar = ALL_TASKS

    def build(self, context: BuildContext) -> Selection:
        """Return the selection."""
        if self.gradients == "asked":
            return Selection(self.select_asked, asks_clients=True, needed_bytes=needed_bytes)
        init = partial(nothing_known, context)
        return Selection(self.select_last, init, asks_clients=True)

    def select_asked(self, memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
        """Return clients that stand for all that are there by their present gradients."""
        gradients = offer.gradients(offer.clients)
        columns = self.representatives(distances(gradients, gradients).numpy(), offer)
        return offer.clients[columns], {}

    def select_last(self, memory: Any, offer: Offer) -> tuple[np.ndarray, Tree]:
        """Return clients that stand for all that are known by their last gradients."""
        unknown = offer.clients[~memory["known"].numpy()[offer.clients]]
        memory = with_gradients(memory, offer, unknown)
        of_known = memory["distances"].numpy()[memory["known"].numpy()]
        selected = offer.clients[self.representatives(of_known[:, offer.clients], offer)]
        return selected, with_gradients(memory, offer, np.setdiff1d(selected, unknown))

    def representatives(self, distances: np.ndarray, offer: Offer) -> np.ndarray:
        """Return the columns to which the rows are near, chosen greedily, int64 [offer.count].

        Args:
            distances: Distances of known clients from those of the offer, [rows, columns].
            offer: The offer.
        """
        left, chosen = np.arange(distances.shape[1]), list[int]()
        nearest = np.full(len(distances), np.inf)
        size = len(left)
        if self.sample is not None:
            size = max(offer.count, int(self.sample * len(left)))
        for _ in range(offer.count):
            tried = left
            if size < len(left):
                tried = np.sort(offer.generator.choice(left, size, replace=False))
            shortened = np.minimum(nearest[:, None], distances[:, tried])
            best = shortened.sum(0, dtype=np.float64).argmin()
            nearest = shortened[:, best]
            chosen.append(int(tried[best]))
            left = left[left != tried[best]]
        return np.array(chosen, np.int64)


def needed_bytes(clients: int, row_bytes: int) -> int:
    """Return the bytes of the gradients of all clients, twice, and of the distances of all."""
    return 2 * clients * row_bytes + 4 * clients**2


def distances(first: Tensor, second: Tensor) -> Tensor:
    """Return the distance of each row of [m, d] from each of [n, d], [m, n]; 0 of equal rows."""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")


def nothing_known(context: BuildContext, clients: int) -> Tree:
    """Return a memory in which the gradient of no client is known.

    It has gradients, [clients, d], their distances, [clients, clients], and who is ``known``.
    """
    row = torch.cat([weight.reshape(-1) for weight in context.network.init(0)["params"].values()])
    return {
        "known": torch.zeros(clients, dtype=torch.bool),
        "gradients": torch.zeros(clients, len(row), dtype=row.dtype),
        "distances": torch.zeros(clients, clients, dtype=row.dtype),
    }


def with_gradients(memory: Any, offer: Offer, clients: np.ndarray) -> Tree:
    """Return a memory with the present gradients of some clients, which are asked for them."""
    if not len(clients):
        return dict(memory)
    index, known = torch.from_numpy(clients), memory["known"].clone()
    known[index] = True
    rows = offer.gradients(clients)
    gradients = memory["gradients"].index_copy(0, index, rows)
    between = memory["distances"].clone()
    between[index] = distances(rows, gradients)
    between[:, index] = between[index].T
    return {"known": known, "gradients": gradients, "distances": between}
