"""Curves for TensorBoard, for users who want them: ``execution: {tensorboard: true}``.

Its package is not part of Fedloom's environment and is imported only then.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from fl.base.errors import FedloomError

if TYPE_CHECKING:
    import pandas as pd

REMEDY = "`pip install tensorboard`, or false"


def there() -> bool:
    """Whether TensorBoard is installed."""
    return importlib.util.find_spec("tensorboard") is not None


class Board:
    """The event files of one run in a folder, going on after round ``after``.

    Every metric is shown as the mean over clients.
    """

    def __init__(self, folder: Path, after: int) -> None:
        if not there():
            raise FedloomError(
                "config: execution.tensorboard: is true, but tensorboard is not installed here; "
                f"allowed: {REMEDY}"
            )
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=after + 1)

    def add(self, round_: int, rows: pd.DataFrame) -> None:
        """The rows of a round, in the columns of `fl.base.schema.METRIC_COLUMNS`."""
        means = rows.groupby(["metric", "split", "stage"])["value"].mean()
        for row in means.reset_index().to_dict("records"):
            name = f"{row['metric']}/{row['split']}, {row['stage']}"
            self._writer.add_scalar(name, row["value"], round_)

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()
