"""Metrics that a study asks for beside those that runs record: of the predictions of their final
models.
"""

from __future__ import annotations

import pandas as pd

from fl.analyses.confusion import BINS, measures
from fl.base.schema import BY_CLASS, METRIC_COLUMNS, PREDICTED_METRICS
from fl.store.layout import PREDICTIONS
from fl.store.store import Store

MEASURES = dict(zip(PREDICTED_METRICS, ("f1", "area", "calibration"), strict=False))
"""What `fl.analyses.confusion` calls them; it says how they are defined."""


def rows(store: Store, run: str, last: int, wanted: list[str]) -> pd.DataFrame:
    """Rows in `METRIC_COLUMNS` of a run's last round; none where its predictions are not kept.

    The accuracy on each class is that on the samples of the class that a client has.
    """
    if not wanted or not store.has(run, (PREDICTIONS,)):
        return pd.DataFrame(columns=list(METRIC_COLUMNS))
    made = []
    for (stage, split, client), seen in store.predictions(run).groupby(
        ["stage", "split", "client"], sort=False
    ):
        values = measures(seen, BINS) if set(MEASURES) & {*wanted} else {}
        values = {name: values[MEASURES[name]] for name in wanted if name in MEASURES}
        counts = dict.fromkeys(values, len(seen))
        if "per_class_accuracy" in wanted:
            right = (seen["label"] == seen["predicted"]).groupby(seen["label"])
            values |= {f"{BY_CLASS}{k}": share for k, share in right.mean().items()}
            counts |= {f"{BY_CLASS}{k}": count for k, count in right.size().items()}
        made += [
            (last, client, split, stage, name, value, counts[name])
            for name, value in values.items()
            if value == value  # An area under the curve that is not defined is left out.
        ]
    return pd.DataFrame(made, columns=list(METRIC_COLUMNS))
