"""Dissimilarity: how far clients' gradients are apart, round by round.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127 (definition 3, figures 2, 6 and 8).

Reads the traces ``variance`` and ``dissimilarity``, [rounds], that `fedprox` keeps with
``dissimilarity: true``: E||grad F_k - grad f||^2 and B = sqrt(E||grad F_k||^2 / ||grad f||^2) at
the model with which an evaluated round began. The larger both are, the less devices agree. Where
the shared model is near a minimum of f, B grows without bound and the variance does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled, with_traces
from fl.base.schema import StudySetting
from fl.blocks.gradient_dissimilarity import DISSIMILARITY_MEASURES
from fl.blocks.plotting import Look, as_picture, axes_of, logarithmic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curves = dict[str, tuple[np.ndarray, np.ndarray]]
"""By method, rounds and values."""

COLUMNS = {
    "first": "variance, first",
    "mean": "variance, mean",
    "last": "variance, last",
    "b": "B, median",
}


@dataclass(frozen=True)
class Dissimilarity:
    """No keys."""

    traces: ClassVar = DISSIMILARITY_MEASURES

    def read(self, runs: Sequence[Source]) -> Result:
        """A row for each run that has the traces; a picture of each setting."""
        rows: list[TableRow] = []
        drawn: dict[StudySetting, Curves] = {}
        chosen = {run.run for run in first_seeds(runs)}
        traced, notes = with_traces(runs, *DISSIMILARITY_MEASURES)
        for run, traces in traced:
            variance, b = (traces[name].double().numpy() for name in DISSIMILARITY_MEASURES)
            values = variance[0], variance.mean(), variance[-1], np.median(b)
            rows.append({**keys(run), **dict(zip(COLUMNS, map(float, values), strict=True))})
            if run.run in chosen:
                drawn.setdefault(run.setting, {})[run.method] = traces["round"].numpy(), variance
        panels = tuple(_panel(setting, curves) for setting, curves in drawn.items())
        return Result(
            table=tabled(runs, rows, *COLUMNS),
            columns=COLUMNS,
            caption=(
                "Dissimilarity of all clients' gradients at the shared model: variance in the "
                "first and the last evaluated round, mean variance over evaluated rounds, and "
                "median B over evaluated rounds."
            ),
            note=(
                "B is the square root of the mean squared length of the gradients divided by the "
                "squared length of their mean. Its minimum is 1: all gradients are equal."
            ),
            panels=panels,
            figure="Variance of clients' gradients over rounds, by the runs of the lowest seed.",
            notes=notes,
        )


def _panel(setting: StudySetting, curves: Curves) -> Panel:
    ends = (f"{name} from {v[0]:.3g} to {v[-1]:.3g}" for name, (_, v) in curves.items())
    return Panel(setting, "", "", f"Variance of gradients: {', '.join(ends)}.", over_rounds(curves))


@as_picture
def over_rounds(look: Look, curves: Curves) -> Figure:
    """A line for each method, on a logarithmic scale where all values are above 0."""
    figure, axes = axes_of(2.6)
    for i, (name, (rounds, values)) in enumerate(curves.items()):
        axes.plot(rounds, values, color=look.colour(i), lw=1.4)
        axes.annotate(name, (rounds[-1], values[-1]), color=look.colour(i), fontsize=8, ha="right",
                      va="bottom")  # fmt: skip
    drawn = np.concatenate([values for _, values in curves.values()])
    if (drawn > 0).all():
        logarithmic(axes, "y", drawn)
    axes.set(xlabel="round", ylabel="variance")
    return figure
