"""``fedloom tracks``: what is claimed of methods on the tracks whose results are kept."""

from __future__ import annotations

import argparse

from fl.base.errors import Location, unknown_name
from fl.cli.commands import add_config_option, say, table_lines
from fl.report import kept_tracks, track_claims, track_page, track_sentences


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.add_argument("track", nargs="?", help="one track (default: all that have kept results)")
    parser.add_argument("--long", action="store_true", help="a row for each comparison, with tests")
    parser.set_defaults(run=_tracks)


def _tracks(parsed: argparse.Namespace) -> None:
    folder = kept_tracks.source(parsed.config)
    known = kept_tracks.names(folder)
    if parsed.track and parsed.track not in known:
        place = Location("the command line")
        raise unknown_name(place, "track with kept results", parsed.track, known)
    tracks = track_claims.read(folder, [parsed.track] if parsed.track else known)
    for line in track_sentences.sentences(tracks):
        say(line)
    tables = [track_page.long_table(tracks)]
    if not parsed.long:
        tables = track_page.overview_tables(tracks)
    for table in tables:
        for line in table_lines(table):
            say(line)
