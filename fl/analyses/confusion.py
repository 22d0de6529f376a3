"""Confusion: which classes final models take for which, and measures beside accuracy.

C. Guo, G. Pleiss, Y. Sun, K. Q. Weinberger. On Calibration of Modern Neural Networks. ICML 2017.
arXiv:1706.04599 (the calibration error).

Of the final round's models, in the stage that tables show, on the clients' test samples. Macro F1
and the area under the ROC curve (each class against the rest) are means over the classes that a
client's test samples have; the area is left out for a client with one class alone. The calibration
error is the mean distance between a prediction's confidence and its accuracy, over bins of
confidence weighted by their samples. Each is a mean over clients, as accuracy is in tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pandas as pd

from fl.analyses import Panel, Result, Source, TableRow, first_seeds, keys, tabled
from fl.base.fields import Count
from fl.base.schema import GLOBAL, PERSONAL
from fl.blocks.plotting import Look, as_picture, axes_of, shade_image

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("f1", "area", "calibration")
BINS = 15


@dataclass(frozen=True)
class Confusion:
    """Confusion matrices and calibration errors.

    Attributes:
        bins: Number of bins of confidence, of equal width, for the calibration error.
    """

    bins: Count = BINS

    weights: ClassVar = True
    """It reads the runs' final weights."""

    def read(self, runs: Sequence[Source]) -> Result:
        """Measures of each run; of each method the matrix of its first seed."""
        # PyTorch, which the report does without when it takes the measures below.
        from fl.engine.predictions import predict_split

        first = {run.run for run in first_seeds(runs)}
        rows: list[TableRow] = []
        panels: list[Panel] = []
        methods_without_models: dict[str, None] = {}
        for run in runs:
            weights, simulation = run.weights(), run.simulation()
            stage = PERSONAL if PERSONAL in weights else GLOBAL
            if "params" not in weights[stage]:
                methods_without_models[f"no models: {run.method}"] = None
                continue
            predictions = predict_split(simulation, weights[stage], stage, "test")
            measures_of_clients = [
                measures(table, self.bins) for _, table in predictions.groupby("client")
            ]
            averages = pd.DataFrame(measures_of_clients, columns=list(MEASURES)).mean()
            rows.append(
                {**keys(run), "stage": stage, **{name: averages[name] for name in MEASURES}}
            )
            if run.run in first:
                counts = matrix(predictions, simulation.classes)
                accuracy = np.trace(counts) / counts.sum()
                alt = f"{len(counts)} classes; {accuracy:.1%} of all test samples on the diagonal."
                panels.append(Panel(run.setting, run.method, stage, alt, drawn(counts)))
        return Result(
            table=tabled(runs, rows, "stage", *MEASURES),
            columns={
                "f1": "macro F1",
                "area": "area under ROC",
                "calibration": "calibration error",
            },
            caption=(
                "Final models on test samples, mean over clients: macro F1, area under the ROC "
                f"curve, calibration error in {self.bins} bins of confidence."
            ),
            panels=tuple(panels),
            figure=(
                "Confusion of classes, by the run of the lowest seed, over all clients: a row is a "
                "class, shades are shares of its samples by the class that is predicted."
            ),
            notes=tuple(methods_without_models),
        )


def measures(predictions: pd.DataFrame, bins: int) -> dict[str, float]:
    """Return the measures of one client.

    Args:
        predictions: The client's predictions, see `fl.engine.predictions.predict_split`.
        bins: Number of bins of confidence.
    """
    from sklearn.metrics import f1_score, roc_auc_score

    labels, predicted = predictions["label"].to_numpy(), predictions["predicted"].to_numpy()
    scores, present = predictions.filter(like="score_").to_numpy(np.float64), np.unique(labels)
    areas = [roc_auc_score(labels == k, scores[:, k]) for k in present if len(present) > 1]
    f1 = f1_score(labels, predicted, labels=present, average="macro", zero_division=0)
    return {
        "f1": float(f1),
        "area": float(np.mean(areas)) if areas else float("nan"),
        "calibration": calibration(scores.max(axis=1), labels == predicted, bins),
    }


def calibration(confidence: np.ndarray, correct: np.ndarray, bins: int) -> float:
    """Return sum_b (n_b / n) |mean correct - mean confidence| over bins of confidence, equation 3.

    Args:
        confidence: The largest score of each sample, [samples].
        correct: Whether the class with that score is the sample's, [samples].
        bins: Number of bins of confidence.
    """
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    gaps = np.bincount(place, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(correct))


def matrix(predictions: pd.DataFrame, classes: int) -> np.ndarray:
    """Count samples by their class (rows) and their predicted class, [classes, classes]."""
    cells = predictions["label"].to_numpy() * classes + predictions["predicted"].to_numpy()
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


@as_picture
def drawn(look: Look, counts: np.ndarray) -> Figure:
    """A square for each pair of classes, shaded by its share of the row; few ones with numbers."""
    figure, axes = axes_of(3.1)
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    axes.imshow(shade_image(shares), interpolation="nearest")
    axes.set(xlabel="predicted", ylabel="class")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(counts), 1 + (len(counts) - 1) // 20))
        axis.set_tick_params(length=0)
    if len(counts) <= 12:
        for row, column in zip(*np.nonzero(counts), strict=True):
            text = str(counts[row, column])
            axes.text(column, row, text, ha="center", va="center", fontsize=6.5, color=look.ink)
    return figure
