"""Metrics of the final models' predictions, for studies that ask for more than runs record."""

from __future__ import annotations

import pandas as pd

from fl.analyses.confusion import BINS, measures
from fl.base.schema import BY_CLASS, METRIC_COLUMNS, PREDICTED_METRICS
from fl.store.run_record import PREDICTIONS
from fl.store.store import Store

MEASURES = dict(zip(PREDICTED_METRICS, ("f1", "area", "calibration"), strict=False))
"""What `fl.analyses.confusion` calls them; it says how they are defined."""


def rows(store: Store, run: str, last: int, metrics: list[str]) -> pd.DataFrame:
    """Rows in `METRIC_COLUMNS` of a run's last round; none where its predictions are not kept.

    The accuracy on each class is that on the samples of the class that a client has.
    """
    if not metrics or not store.has(run, (PREDICTIONS,)):
        return pd.DataFrame(columns=list(METRIC_COLUMNS))
    rows_ = []
    for (stage, split, client), table in store.predictions(run).groupby(
        ["stage", "split", "client"], sort=False
    ):
        values = measures(table, BINS) if set(MEASURES) & {*metrics} else {}
        values = {name: values[MEASURES[name]] for name in metrics if name in MEASURES}
        counts = dict.fromkeys(values, len(table))
        if "per_class_accuracy" in metrics:
            correct = (table["label"] == table["predicted"]).groupby(table["label"])
            values |= {f"{BY_CLASS}{k}": share for k, share in correct.mean().items()}
            counts |= {f"{BY_CLASS}{k}": count for k, count in correct.size().items()}
        rows_ += [
            (last, client, split, stage, name, value, counts[name])
            for name, value in values.items()
            if value == value  # An area under the curve that is not defined is left out.
        ]
    return pd.DataFrame(rows_, columns=list(METRIC_COLUMNS))
