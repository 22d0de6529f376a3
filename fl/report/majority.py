"""Errors of the majority predictor, below which a comparison of two methods says nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from fl.base.schema import GLOBAL
from fl.report.partitions import Partition
from fl.report.summaries import KEY


def errors(
    rows: pd.DataFrame,
    runs: pd.DataFrame,
    partitions: Mapping[str, Partition],
    all_samples: bool = False,
    unseen: bool = False,
) -> pd.DataFrame:
    """Return ``errors``, the wrong samples of the majority predictor, by setting, method and run.

    It predicts the most frequent training class: of all clients where a shared model is scored, and
    of each client where its own model is. Runs whose partition is not known are left out.

    Args:
        rows: Final rows of the accuracy of clients.
        runs: Table of runs.
        partitions: By id.
        all_samples: Whether models are scored on the test samples of all clients.
        unseen: Whether the rows are of clients that are held out of training.
    """
    partition_of = dict(zip(runs["run"], runs["partition_id"], strict=True))
    records = []
    for key, group in rows.groupby([*KEY, "run"], sort=False):
        partition = partitions.get(partition_of[group["run"].iloc[0]])
        if partition is None or not partition.by_class:
            continue
        is_shared = bool((group["stage"] == GLOBAL).all())
        hits = group["client"].map(partition.majority(all_samples, is_shared, unseen))
        count = float((group["n"] * (1 - hits)).sum(skipna=False))
        records.append(dict(zip([*KEY, "run", "errors"], (*key, count), strict=True)))
    return pd.DataFrame(records, columns=[*KEY, "run", "errors"])
