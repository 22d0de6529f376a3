"""Complementarity: whose models are alike, whose features are, and which network follows.

Yan, Cui, Wuerkaixi, Zhang, Han, Niu, Sugiyama, Zhang. Balancing Similarity and Complementarity for
Federated Learning. ICML 2024. arXiv:2405.09892 (figures 1 and 3).

Reads the traces ``similarity`` and ``complementarity``, [rounds, clients, clients], that `fedsac`
keeps. Three networks follow from the matrices of one round: by similarity alone (alpha = 0), by
complementarity alone (beta = 0), and by both. The paper's figure may show three runs; here all
three networks are of the same models of one run, and differ in nothing else. Beside them stands how
alike the clients' data are, the cosine between their shares of classes. Correlations (Pearson) are
over pairs of different clients that took part in the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled, with_traces
from fl.analyses.cooperation import correlation, heat_map, similarity
from fl.base.fields import NonNegative
from fl.blocks.mixing import fedsac_weights

TRACES = ("similarity", "complementarity")
NETWORKS = ("similarity only", "complementarity only", "both")
COLUMNS = {
    "data_cosine": "cosine of data",
    "model_cosine": "cosine of models",
    "subspace_cosine": "cosine of subspaces",
    "models": "similarity of models and of data",
    "features": "cosine of subspaces and similarity of data",
    "own_similarity": "own weight, similarity only",
    "own_complementarity": "own weight, complementarity only",
    "own_both": "own weight, both",
}


@dataclass(frozen=True)
class Complementarity:
    """Networks by complementarity and similarity.

    Attributes:
        alpha: Weight of complementarity in the networks.
        beta: Weight of similarity in the networks.
    """

    alpha: NonNegative = 0.9
    beta: NonNegative = 1.4

    one_modality: ClassVar = True
    traces: ClassVar = TRACES

    def read(self, runs: Sequence[Source]) -> Result:
        """A row for each round of each run that has the traces; pictures of the last round."""
        rows: list[TableRow] = []
        panels: list[Panel] = []
        chosen = {run.run for run in first_seeds(runs)}
        traced, notes = with_traces(runs, *TRACES)
        for run, traces in traced:
            counts = run.counts()
            data_similarity, matrices = similarity(counts), {}
            for place, number in enumerate(traces["round"].tolist()):
                models, features = (traces[name][place].double().numpy() for name in TRACES)
                participants = models.diagonal() > 0
                networks = self.networks(counts.sum(1), models, features, participants)
                on_self = [float(network.diagonal()[participants].mean()) for network in networks]
                correlations = [
                    _follows(matrix, data_similarity, participants) for matrix in (models, features)
                ]
                averages = [
                    between(matrix, participants) for matrix in (data_similarity, models, features)
                ]
                values = dict(zip(COLUMNS, [*averages, *correlations, *on_self], strict=True))
                rows.append({**keys(run), "round": number, **values})
                matrices = dict(zip(NETWORKS, networks, strict=True))
                matrices = {"models": models, "features": features, **matrices}
            if run.run in chosen:
                panels += _panels(run, {"data": data_similarity, **matrices})
        return Result(
            table=tabled(runs, rows, "round", *COLUMNS),
            columns=COLUMNS,
            caption=(
                "Similarity of clients by round: the cosines of their shares of classes, of their "
                "models, and of the mean angle between their subspaces of features. Mean over "
                "pairs of different clients that took part in the round."
            ),
            note=(
                "A correlation, over the same pairs, says whether clients with similar data have "
                "similar models or subspaces; two clients make one pair and have no correlation. "
                "Own weight: the weight of a client in its own mixture, mean over clients, with "
                f"alpha = {self.alpha:g} and beta = {self.beta:g}."
            ),
            panels=tuple(panels),
            figure=(
                "Similarity in the last evaluated round (run of the lowest seed), then the weights "
                "that follow from similarity, from complementarity, and from both. Rows are the "
                "clients that learn; dark is large; negative values are blank."
            ),
            notes=notes,
        )

    def networks(
        self, sizes: np.ndarray, models: np.ndarray, features: np.ndarray, participants: np.ndarray
    ) -> list[np.ndarray]:
        """Return the `NETWORKS`, [clients, clients] each; zeros for clients that took no part.

        Args:
            sizes: Samples of every client, [clients].
            models: Similarities of models, [clients, clients].
            features: Similarities of features, [clients, clients].
            participants: Whether each client took part, [clients].
        """
        pairs = np.ix_(participants, participants)
        fractions = torch.from_numpy(sizes[participants] / sizes[participants].sum())
        networks = []
        for alpha, beta in ((0.0, self.beta), (self.alpha, 0.0), (self.alpha, self.beta)):
            network = np.zeros_like(models)
            similarities = torch.from_numpy(models[pairs]), torch.from_numpy(features[pairs])
            network[pairs] = fedsac_weights(fractions, *similarities, alpha, beta).numpy()
            networks.append(network)
        return networks


def between(matrix: np.ndarray, participants: np.ndarray) -> float:
    """Return a matrix's mean over pairs of different participants; NaN without any."""
    pairs = np.outer(participants, participants) & ~np.eye(len(participants), dtype=bool)
    return float(matrix[pairs].mean()) if pairs.any() else float("nan")


def _follows(matrix: np.ndarray, data_similarity: np.ndarray, participants: np.ndarray) -> float:
    pairs = np.ix_(participants, participants)
    # Rows of similarities may sum to less than nothing: `participants` says who takes part.
    return correlation(matrix[pairs] + 2, data_similarity[pairs])


def _panels(run: Source, matrices: dict[str, np.ndarray]) -> list[Panel]:
    panels = []
    for title, matrix in matrices.items():
        low, high = float(matrix.min()), float(matrix.max())
        alt = f"{title}, {len(matrix)} clients, values from {low:.2f} to {high:.2f}."
        across = "learns from client" if title in NETWORKS else "client"
        panels.append(Panel(run.setting, run.method, title, alt, heat_map(matrix, across)))
    return panels
