"""The columns that parts of the pipeline agree on.

Results are one long, tidy table: a row is one metric of one client of one run after one round.
"""

from __future__ import annotations

RESULT_COLUMNS = {
    "study": "string",
    "run": "string",
    "dataset": "string",
    "partition": "string",
    "model": "string",
    "method": "string",
    "seed": "int64",
    "round": "int32",
    "client": "int32",
    "split": "string",
    "stage": "string",
    "metric": "string",
    "value": "float64",
    "n": "int64",
}
"""Schema of ``results/tables/<study>.parquet``, to which `fl.report.tables` adds the grid point.
``n`` is the number of samples from which the value is computed.
"""

StudySetting = tuple[str, str, str]
"""Data set, partition and model, as the study writes them: that in which methods are compared."""

SETTING = ["dataset", "partition", "model"]
"""The columns of a `StudySetting`."""

COMPLETE, DIVERGED, MISSING = "complete", "diverged", "missing"
"""States of a planned run in the runs table."""

METRIC_COLUMNS = ("round", "client", "split", "stage", "metric", "value", "n")
"""What a run itself writes (``metrics.parquet``); the rest of a row is known from its spec."""

PARTITION_COLUMNS = ("sample", "client", "split")
SPLITS = ("train", "val", "test")
SERVER = "server"
"""In a partition, the split of the samples that are the server's own. Their client is the one that
they were dealt to first; it never sees them.
"""
HOLDINGS = (*SPLITS, SERVER)
"""All splits of a partition; results have no rows of the last one."""
GROUP = "group"
"""Column of a partition and of predictions: name of the group of a sample, which is kept whole."""
UNSEEN = "unseen"
"""In a partition, the column that marks clients held out of training. In results, the split of
their test samples; means of ``test`` are over the clients that are trained on.
"""

CLOCK = "clock"
"""In results, the split of what is known of a round as a whole, if clients have devices."""
SERVER_ROW = -1
"""The client of such rows."""
CLOCK_METRICS = {
    "seconds": "simulated seconds since the begin of training at which the round ends",
    "slowest": "simulated seconds of the slowest client whose result the server uses",
    "idle": "share of the round in which such a client waits, mean; none if nobody waits",
    "lost": "share of clients' working time whose result the server does not use",
    "dropped": "clients whose result the server does not use",
    "bytes_down": "bytes that the server sends",
    "bytes_up": "bytes that the server receives",
}
"""Metrics of such rows, and what they are; ``n`` is the number of participants."""

REWEIGHTED = "reweighted_accuracy"
"""Accuracy on the test samples of all clients, where each class is weighted by its share of the
client's own training samples; measured where a study asks for it (``test: reweighted``). There is
none on validation samples: what is chosen by them is chosen by accuracy.
"""

COSTS = (
    *("seconds", "bytes_down", "bytes_up", "flops", "flops_server"),
    *("memory_client", "state_client", "state_server"),
)
"""Columns of the runs table that say what a run took: a whole run's seconds; of a client and
round, bytes and operations; bytes that a client's training reads and that are kept between rounds.
"""

PACE = ("rounds to ", "speedup to ")
"""What begins a published quantity that is counted in rounds to an entry's final value."""

GLOBAL, PERSONAL = "global", "personal"
"""Stages: the shared model before personalisation, and a client's own model after it."""

ERRORS = ("rmse", "mae")
"""Metrics of a regression in the target's own unit."""
PARTIAL_METRICS = (REWEIGHTED, "r2")
"""Metrics that some clients lack; they have no row for them."""

PREDICTED_METRICS = ("macro_f1", "auroc", "calibration_error", "per_class_accuracy")
"""Metrics that a study may ask for beside those of its task, see `fl.report.tables`."""
BY_CLASS = "accuracy_of_class_"
"""What the accuracy on samples of one class is called, before the number of the class."""

SHARES = (
    *("accuracy", "balanced_accuracy", REWEIGHTED, "dice", "foreground_dice"),
    *PREDICTED_METRICS[:3],
)
"""Metrics that are shares, from 0 to 1; reports show them in percent, as accuracies by class."""


def rising(metric: str) -> bool:
    """Whether more of ``metric`` is better."""
    return metric not in ("loss", "calibration_error", *ERRORS)
