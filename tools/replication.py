"""Do a track's verdicts hold on other draws? ``python -m tools.replication rodents``.

The study ``replication-NAME`` is the track ``track-NAME`` with other draws. The comparisons of each
of the two are corrected as families of their own, so that they can be set side by side.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

from fl.base.errors import DataError, FedloomError
from fl.cli.commands import say
from fl.plan import plan
from fl.report import claims, tracks
from tools import comparison

PREFIX = "replication-"
CLAIMS = (claims.AHEAD, claims.BEHIND)


def verdicts(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each comparison that both tables have.

    The columns are ``method, other``, and ``difference`` and ``verdict`` of each table, with the
    endings ``_first`` and ``_second``.

    Args:
        first: Lines of one track, as `fl.report.tracks.measured_lines` gives them.
        second: Lines of the same track over other draws.
    """
    keys = ["method", "other"]
    tables = [
        tracks.compare_with_baselines(table)[[*keys, "difference", "verdict"]]
        for table in (first, second)
    ]
    return tables[0].merge(tables[1], on=keys, suffixes=("_first", "_second"))


def summary(table: pd.DataFrame) -> str:
    """Return how many verdicts of `verdicts` hold, in a sentence."""
    claimed = table[table["verdict_first"].isin(CLAIMS)]
    equal = claimed["verdict_first"] == claimed["verdict_second"]
    is_claim = claimed["verdict_second"].isin(CLAIMS)
    new = table["verdict_second"].isin(CLAIMS) & ~table["verdict_first"].isin(CLAIMS)
    return (
        f"{len(claimed)} of {len(table)} comparisons ended with a claim; on other draws"
        f" {equal.sum()} of these are claims again, {(~is_claim).sum()} are not,"
        f" {(is_claim & ~equal).sum()} are claims of the opposite, and {new.sum()} claims are new"
    )


def replicated(folder: Path, track: str) -> pd.DataFrame:
    """Return the lines of the study ``replication-TRACK``, from the store.

    Raises:
        FedloomError: For what is wrong with the study or the store.
    """
    name = f"{PREFIX}{track}"
    planned = plan.read(folder, [name])
    table, _ = comparison.measured(folder, planned, name, track)
    if table.empty:
        advice = f"snakemake --config studies={name}"
        raise DataError(f"{name}: no draw is trained with all methods", advice=advice)
    return table


def main(arguments: list[str] | None = None) -> int:
    """Print the comparisons whose verdicts differ, and how many hold."""
    parser = argparse.ArgumentParser(prog="python -m tools.replication", description=main.__doc__)
    parser.add_argument("track")
    parser.add_argument("--config", type=Path, default=Path("config"))
    parsed = parser.parse_args(arguments)
    try:
        published = tracks.read_published(parsed.config)
        first = published[published["track"] == parsed.track]
        table = verdicts(first, replicated(parsed.config, parsed.track))
        changed = table[table["verdict_first"] != table["verdict_second"]]
        for row in changed.to_dict("records"):
            before, now = (
                f"{100 * row[f'difference_{name}']:+.1f} ({row[f'verdict_{name}']})"
                for name in ("first", "second")
            )
            say(f"  {row['method']} from {row['other']}: {before}, then {now}")
        say(summary(table))
    except FedloomError as error:
        say(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
