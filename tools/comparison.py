"""The kept results of the tracks, from their runs: ``python -m tools.comparison``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from fl.base.errors import FedloomError, Location
from fl.base.files import write_bytes
from fl.cli.commands import say
from fl.notebook import rounding
from fl.plan import config, plan, study_files
from fl.report import result_files, track_page, tracks
from fl.report.facts import read_partitions
from tools import pages

CONFIG = Path("config")
PAGE = Path("docs/results/comparison.md")
TABLE_PAGE = Path("docs/reference/comparison-table.md")
TABLE_TEXT = """\
# All results of the tracks in one table

*Written by `python -m tools.comparison`, from the kept results: nothing here is typed by hand.*

Every method on every [track](../results/comparison.md), for readers who look for one kind of
difference, one family or one cost. On the site, a click on a head sorts the rows, and the fields
above the table choose among them. `fedloom tracks --long` prints the same table; `fedloom compare
mine` sets a method of yours beside it.

<div class="table-filters" data-choices="track family verdict" data-limits="bytes operations"></div>

<!-- fedloom tracks --long -->
<!-- end -->
"""
PICTURES = Path("docs/results/comparison")


def collect(folder: Path, repetitions: int = 0) -> pd.DataFrame:
    """The lines of all tracks of a config folder; draws of which a run is missing are as kept.

    Args:
        folder: The config folder.
        repetitions: How often each track is trained again, to measure how far rounding moves its
            lines; 0: lines that are as kept keep what was measured.

    Raises:
        FedloomError: For what is wrong with a study or the store.
    """
    study_by_track = study_files.tracks(folder)
    planned = plan.read(folder, list(study_by_track.values()))
    lines = []
    for track, name in study_by_track.items():
        table, runs = measured(folder, planned, name, track)
        missing = int((runs["state"] == "missing").sum())
        if missing:
            say(f"{name}: {missing} of {len(runs)} runs are missing", file=sys.stderr)
        before = _of_before(folder, track)
        both = pd.concat([table, before[~before["draw"].isin(table["draw"])]])
        if repetitions:
            again = [repeated(folder, name, track, k) for k in range(1, repetitions + 1)]
            both = tracks.with_rounding(both, again)
        else:
            both = both.assign(rounding=_rounding_of_before(both, before))
        lines.append(both.sort_values("draw", kind="stable"))
    return pd.concat(lines, ignore_index=True)


def _rounding_of_before(table: pd.DataFrame, before: pd.DataFrame) -> pd.Series:
    """Return ``rounding`` of the lines that are as kept; NaN for others."""
    key = ["method", "draw", "accuracy"]
    kept = before.set_index(key)["rounding"]
    values: pd.Series = kept.reindex(pd.MultiIndex.from_frame(table[key])).set_axis(table.index)
    return values


def repeated(folder: Path, study_name: str, track: str, number: int) -> pd.DataFrame:
    """Return the lines of a track, trained with other last bits (`fl.notebook.rounding`)."""
    study = config.read_yaml(study_files.file(folder, study_name))
    result = rounding.repeat(study_name, study, number, folder, progress=True)
    store, results = Path(result.settings.store), Path(result.settings.results)
    rows, runs = result_files.read(result.study, store, results)
    return tracks.measured_lines(track, starts(folder, study_name), rows, runs)


def measured(
    folder: Path, planned: plan.Plan, study_name: str, track: str
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the lines of a track by the runs of a study in the store, and the table of its runs.

    Args:
        folder: The config folder.
        planned: Plan of the study.
        study_name: The study.
        track: Name of the track in the lines.
    """
    settings, study = planned.settings, planned.studies[study_name]
    rows, runs = result_files.read(study, Path(settings.store), Path(settings.results))
    partitions = read_partitions(Path(settings.results), runs, {})
    return tracks.measured_lines(track, starts(folder, study_name), rows, runs, partitions), runs


def starts(folder: Path, study_name: str) -> dict[str, str]:
    """Return the entry from which each entry of a study starts, by its name."""
    study, _ = config.read_study(folder, study_name, Location(study_name))
    return {m: keys["start"] for m, keys in study.methods.items() if keys and "start" in keys}


def _of_before(folder: Path, track: str) -> pd.DataFrame:
    if not (folder / tracks.FILE).exists():
        return pd.DataFrame(columns=[*tracks.COLUMNS])
    table = tracks.read_published(folder)
    return table[table["track"] == track]


def main(repetitions: int = 0) -> int:
    """Write the kept table, the pages' tables and the figures; `collect` tells of repetitions."""
    try:
        table = collect(CONFIG, repetitions)
        say(tracks.write(CONFIG, table))
        PICTURES.mkdir(exist_ok=True)
        for name, picture in track_page.pictures(tracks.read_published(CONFIG)).items():
            write_bytes(PICTURES / f"{name}.svg", picture.files()[".svg"])
        for page, text in ((PAGE, PAGE.read_text("utf-8")), (TABLE_PAGE, TABLE_TEXT)):
            write_bytes(page, pages.filled(text, CONFIG).encode())
            say(page)
    except FedloomError as error:
        say(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tools.comparison", description=__doc__)
    text = "train each track N times with other last bits, for the column `rounding`"
    parser.add_argument("--rounding", type=int, default=0, metavar="N", help=text)
    sys.exit(main(parser.parse_args().rounding))
