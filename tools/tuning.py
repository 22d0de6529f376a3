"""The points of a track, chosen on draws of their own: ``python -m tools.tuning vowel``.

The study ``tuning-NAME`` has the grids of the track ``track-NAME`` and other draws. The point with
the best validation accuracy, mean over clients and draws, is written into the track by hand, and
into the entries of the study that start from it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from fl.base.errors import FedloomError, Location
from fl.cli.commands import say
from fl.plan import config, plan
from fl.report import result_files, tuning
from fl.report.tables import HYPER
from fl.report.tuning import PREFIX
from tools import comparison


def points(folder: Path, study_name: str) -> pd.DataFrame:
    """Return the points of a study (`fl.report.tuning.points`).

    Raises:
        FedloomError: For what is wrong with the study or the store.
    """
    planned = plan.read(folder, [study_name])
    settings, study = planned.settings, planned.studies[study_name]
    return tuning.points(*result_files.read(study, Path(settings.store), Path(settings.results)))


def main(arguments: list[str] | None = None) -> int:
    """Print the points of a track as lines of its study, and which of them are at an edge."""
    parser = argparse.ArgumentParser(prog="python -m tools.tuning", description=main.__doc__)
    parser.add_argument("track")
    parser.add_argument("--config", type=Path, default=Path("config"))
    parsed = parser.parse_args(arguments)
    name = f"{PREFIX}{parsed.track}"
    try:
        table, starts = points(parsed.config, name), comparison.starts(parsed.config, name)
        for method, row in tuning.best(table, starts).items():
            rates = table.loc[table["method"] == method, f"{HYPER}lr"]
            if len(rates) == 1:  # The start of a fine-tuning, at the point that is its best.
                continue
            edge = "lowest" if row[f"{HYPER}lr"] == rates.min() else ""
            edge = "highest" if row[f"{HYPER}lr"] == rates.max() else edge
            values = row.dropna().items()
            keys = {str(k).removeprefix(HYPER): v for k, v in values if str(k).startswith(HYPER)}
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
