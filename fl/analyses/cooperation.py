"""Cooperation: who learns from whom over rounds, beside how alike the clients' data are.

After the heat maps of cooperation of: Yan, Cui, Wuerkaixi, Zhang, Han, Niu, Sugiyama, Zhang.
Balancing Similarity and Complementarity for Federated Learning. ICML 2024. arXiv:2405.09892.

Reads the trace ``cooperation``, [rounds, clients, clients], that methods with a graph between
clients keep (`pfedgraph`): row i has the weights of client i's mixture. Beside it stands what is
known from the data alone: the cosine between two clients' shares of classes among their training
samples. The correlation of the two (Pearson) is over pairs of different clients that took part in
the round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled, with_traces
from fl.blocks.plotting import Look, as_picture, axes_of, shade_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TRACE = "cooperation"


@dataclass(frozen=True)
class Cooperation:
    """Matrices over rounds, and how they follow the data."""

    traces: ClassVar = (TRACE,)

    def read(self, runs: Sequence[Source]) -> Result:
        """A correlation for each round of each run that has the trace; matrices of some rounds."""
        rows: list[TableRow] = []
        panels: list[Panel] = []
        chosen = {run.run for run in first_seeds(runs)}
        traced, notes = with_traces(runs, TRACE)
        for run, traces in traced:
            rounds = traces["round"].tolist()
            matrices = traces[TRACE].double().numpy()
            data_similarity = similarity(run.counts())
            rows += [
                {**keys(run), "round": number, "correlation": correlation(matrix, data_similarity)}
                for number, matrix in zip(rounds, matrices, strict=True)
            ]
            if run.run in chosen:
                panels += _panels(run, rounds, matrices, data_similarity)
        return Result(
            table=tabled(runs, rows, "round", "correlation"),
            columns={"correlation": "correlation"},
            caption=(
                "Correlation, over pairs of different clients that took part in the round, between "
                "the weight that one has in the other's mixture and the cosine of their shares of "
                "classes among training samples."
            ),
            panels=tuple(panels),
            figure=(
                "Weights of the clients' mixtures (run of the lowest seed): rows are the clients "
                "that learn, columns those they learn from; dark is large. Last: cosine of the "
                "clients' shares of classes."
            ),
            notes=notes,
        )


def similarity(counts: np.ndarray) -> np.ndarray:
    """Return the cosines between the clients' shares of classes, [clients, clients].

    A client without samples has 0.

    Args:
        counts: Samples of every client by class, [clients, classes].
    """
    length = np.linalg.norm(counts, axis=1, keepdims=True)
    unit = counts / np.where(length > 0, length, 1)
    return np.asarray(unit @ unit.T)


def correlation(matrix: np.ndarray, data_similarity: np.ndarray) -> float:
    """Pearson's, over pairs of different clients that have a mixture; NaN where one is constant."""
    present = matrix.sum(axis=1) > 0
    pairs = np.outer(present, present) & ~np.eye(len(matrix), dtype=bool)
    values, references = matrix[pairs], data_similarity[pairs]
    if len(values) < 2 or np.ptp(values) == 0 or np.ptp(references) == 0:
        return float("nan")
    return float(np.corrcoef(values, references)[0, 1])


def _panels(
    run: Source, rounds: list[int], matrices: np.ndarray, data_similarity: np.ndarray
) -> list[Panel]:
    """The first, the middle and the last evaluated round, and the similarity of the data."""
    places = sorted({0, (len(rounds) - 1) // 2, len(rounds) - 1})
    shown = [(f"round {rounds[i]}", matrices[i]) for i in places]
    panels = []
    for title, matrix in [*shown, ("similarity of data", data_similarity)]:
        low, high = float(matrix.min()), float(matrix.max())
        alt = f"{title}, {len(matrix)} clients, values from {low:.2f} to {high:.2f}."
        picture = heat_map(matrix, "client" if matrix is data_similarity else "learns from client")
        panels.append(Panel(run.setting, run.method, title, alt, picture))
    return panels


@as_picture
def heat_map(look: Look, matrix: np.ndarray, across: str) -> Figure:
    """A square for each pair of clients, shaded by its value."""
    figure, axes = axes_of(3.1)
    top = float(matrix.max())
    shade = np.clip(matrix / top if top > 0 else matrix, 0, 1)
    axes.imshow(shade_image(shade), interpolation="nearest")
    axes.set(xlabel=across, ylabel="client")
    axes.set_title(f"largest {top:.2f}", fontsize=8.5, color=look.ink)
    step = 1 + (len(matrix) - 1) // 20
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(matrix), step))
        axis.set_tick_params(length=0)
    return figure
