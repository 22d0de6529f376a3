"""The points of a track, chosen on draws of their own: ``python -m tools.tuning vowel``.

The study ``tuning-NAME`` has the grids of the track ``track-NAME`` and other draws. The point with
the best validation accuracy, mean over clients and draws, is written into the track by hand, and
into the entries of the study that start from it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from fl.base.errors import FedloomError, Location
from fl.base.schema import COMPLETE
from fl.cli.commands import say
from fl.plan import config, plan
from fl.report import result_files, summaries
from tools import comparison

PREFIX = "tuning-"
KEYS = "hp."


def points(folder: Path, study_name: str) -> pd.DataFrame:
    """Return a row for each entry and point of which all draws are trained and none diverged.

    The columns are ``method``, ``val`` (mean over draws), and ``hp.KEY`` of each key of a grid.

    Raises:
        FedloomError: For what is wrong with the study or the store.
    """
    planned = plan.read_or_make(folder, [study_name])
    settings, study = planned.settings, planned.studies[study_name]
    rows, runs = result_files.read(study, Path(settings.store), Path(settings.results))
    score = summaries.final_rows(rows, "accuracy", "val").groupby(["method", "run"])["value"].mean()
    runs = runs.merge(score.rename("val").reset_index(), on=["method", "run"], how="left")
    runs["val"] = runs["val"].where(runs["state"] == COMPLETE)
    keys = [column for column in runs if str(column).startswith(KEYS)]
    grouped = runs.groupby(["method", *keys], sort=False, dropna=False)["val"]
    return grouped.agg(lambda draws: draws.mean(skipna=False)).dropna().reset_index()


def best(table: pd.DataFrame, starts: Mapping[str, str]) -> dict[str, pd.Series]:
    """Return the best point of each entry, the first of equal ones.

    An entry that starts from another one has the other's best point.

    Args:
        table: Result of `points`.
        starts: The entry from which each entry starts, by its name.
    """
    chosen: dict[str, pd.Series] = {}
    methods = [str(method) for method in table["method"].unique()]
    for method in sorted(methods, key=lambda method: method in starts):
        rows = table[table["method"] == method]
        for key, value in chosen.get(starts.get(method, ""), pd.Series()).items():
            start_key = str(key).replace(KEYS, f"{KEYS}start.")
            if start_key in rows and str(key).startswith(KEYS) and pd.notna(value):
                rows = rows[rows[start_key] == value]
        chosen[method] = rows.iloc[int(rows["val"].argmax())]
    return chosen


def main(arguments: list[str] | None = None) -> int:
    """Print the points of a track as lines of its study, and which of them are at an edge."""
    parser = argparse.ArgumentParser(prog="python -m tools.tuning", description=main.__doc__)
    parser.add_argument("track")
    parser.add_argument("--config", type=Path, default=Path("config"))
    parsed = parser.parse_args(arguments)
    name = f"{PREFIX}{parsed.track}"
    try:
        table, starts = points(parsed.config, name), comparison.starts(parsed.config, name)
        for method, row in best(table, starts).items():
            rates = table.loc[table["method"] == method, f"{KEYS}lr"]
            if len(rates) == 1:  # The start of a fine-tuning, at the point that is its best.
                continue
            edge = "lowest" if row[f"{KEYS}lr"] == rates.min() else ""
            edge = "highest" if row[f"{KEYS}lr"] == rates.max() else edge
            values = row.dropna().items()
            keys = {str(k).removeprefix(KEYS): v for k, v in values if str(k).startswith(KEYS)}
            shown = ", ".join(f"{k}: {v:g}" for k, v in keys.items() if not k.startswith("start."))
            remark = f" # {row['val']:.3f}" + (f", the {edge} rate" if edge else "")
            say(f"  {method}: {{{shown}}}{remark}")
        written, _ = config.read_study(parsed.config, name, Location(name))
        lost = [method for method in written.methods if method not in set(table["method"])]
        if lost:
            say(f"no point is trained in all draws: {', '.join(lost)}", file=sys.stderr)
    except FedloomError as error:
        say(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
