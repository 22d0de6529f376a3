"""Natural clients of a divided pool, as long as schemes cannot divide one themselves."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from fl.api.task import for_any_task
from fl.base.fields import Count, Seed, Share
from fl.base.rng import generator
from fl.base.schema import UNSEEN
from fl.data.schemes.natural import natural


@for_any_task
def pool(
    labels: np.ndarray,
    groups: np.ndarray | None,
    *,
    seed: Seed = 0,
    val: Share = 0.1,
    test: Share = 0.2,
    part: Literal["tuning", "scored"],
    division: Seed,
    unseen: Share = 0.0,
    newcomer_samples: Count = 20,
) -> pd.DataFrame:
    """Divide natural clients into those who tune and those who are scored.

    Args:
        labels: Classes of all samples, int64 [samples].
        groups: Client of each sample, [samples].
        seed: Seed of splits and newcomers.
        val: Share of validation samples.
        test: Share of test samples.
        part: Which clients to keep.
        division: Seed of the division.
        unseen: Share of newcomers.
        newcomer_samples: Largest number of training samples of a newcomer.
    """
    table = natural(labels, groups, seed=seed, val=val, test=test)
    order = generator(division, "division").permutation(int(table["client"].max()) + 1)
    kept = np.sort(order[: len(order) // 3] if part == "tuning" else order[len(order) // 3 :])
    table = table[table["client"].isin(kept)].reset_index(drop=True)
    table["origin"] = table["client"]
    table["client"] = np.searchsorted(kept, table["client"]).astype(np.int32)
    count = round(unseen * len(kept))
    newcomers = generator(seed, UNSEEN).choice(len(kept), count, replace=False)
    table[UNSEEN] = table["client"].isin(newcomers)
    train = table[table[UNSEEN] & (table["split"] == "train")]
    surplus = train.index[train.groupby("client").cumcount() >= newcomer_samples]
    return table.drop(index=surplus).reset_index(drop=True)
