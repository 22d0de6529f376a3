"""``fedloom tracks``: the published comparison of all methods."""

from __future__ import annotations

import argparse

from fl.base.errors import Location, unknown_name
from fl.cli.commands import add_config_option, say
from fl.plan import study_files
from fl.report import page, track_page, tracks


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.add_argument(
        "track", nargs="?", help="print the ranking of one track (default: all tracks)"
    )
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--long", action="store_true", help="a row for each method of each track")
    kinds.add_argument(
        "--budgets", action="store_true", help="the best methods within multiples of a cost"
    )
    parser.set_defaults(run=_tracks)


def _tracks(parsed: argparse.Namespace) -> None:
    folder = tracks.folder_of(parsed.config)
    table = tracks.read_published(folder)
    names = list(dict.fromkeys([*table["track"], *study_files.tracks(folder)]))
    if parsed.track and parsed.track not in names:
        raise unknown_name(Location("the command line"), "track", parsed.track, names)
    if parsed.track and parsed.track not in set(table["track"]):
        say("There are no published results of this track.")
        return
    if parsed.budgets:
        view = track_page.budgets(table[table["track"] == parsed.track] if parsed.track else table)
    else:
        tests = tracks.compare_with_baselines(table)
        if parsed.track:
            view = track_page.ranking(table, tests, parsed.track)
        else:
            view = (track_page.long_table if parsed.long else track_page.overview)(table, tests)
    for line in page.to_markdown(view).splitlines():
        say(line)
