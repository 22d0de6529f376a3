"""Tables of claims about clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fl.report import claims
from fl.report.cells import NOTHING, Cell, Row, Table, columns, number, probability
from fl.report.client_claims import TrackClaims
from fl.report.kept_tracks import MISSING_RUN, NO_OP

NAMES = (
    *("track", "family", "value", "clients", "difference", "p", "p, these\nmodels"),
    *("p,\nre-splits", "p,\nequal", "better", "verdict"),
    *("equal\noperations", "bytes", "operations"),
)
"""Columns of `long_table` after the first."""


def long_table(tracks: Sequence[TrackClaims]) -> Table:
    """Return a row for each comparison of each track, for pages on which readers sort and filter.

    Args:
        tracks: The tracks.
    """
    rows = [
        Row(one.title_of(str(record["entry"])), tuple(map(Cell, _cells(one, record))))
        for one in tracks
        for record in one.verdicts.to_dict("records")
    ]
    caption = (
        "Every comparison: value on scored clients, and difference from the family's baseline with "
        "its 95 % interval, where more is better; costs as multiples of the baseline's."
    )
    note = (
        "p: for clients like these and models trained again, corrected for the family; the verdict "
        "rests on it. These models: for clients like these, by these models alone. Re-splits: for "
        "these clients, split and trained again. Equal: that the difference is within the "
        "margin. Better: share of clients with a gain. Equal operations: difference and verdict "
        "beside a baseline trained for as many. A claim is marked where blocks of clients, such as "
        "schools of an authority, do not carry it."
    )
    heads = columns("Method", *NAMES, text=("track", "family", "verdict", "equal\noperations"))
    return Table("clients", caption, heads, tuple(rows), note=note)


def _cells(one: TrackClaims, record: Mapping[Any, Any]) -> list[str]:
    """Return the texts of a comparison after the name of its entry."""
    means = one.means[
        (one.means["budget"] == 1)
        & (one.means["entry"] == record["entry"])
        & (one.means["clients"] == record["clients"])
    ]
    value = float(means["value"].iloc[0]) if len(means) else np.nan
    start = [one.name, str(record["family"]), number(value, one.track.metric)]
    costs = [_multiple(record["bytes"]), _multiple(record["operations"])]
    if record["verdict"] in (NO_OP, MISSING_RUN):
        return [*start, *[NOTHING] * 7, verdict_text(one, record), NOTHING, *costs]
    shown = [one.shown(record[key]) for key in ("difference", "low", "high")]
    return [
        *start,
        str(int(record["n"])),
        "{} ({} to {})".format(*shown),
        *(probability(record[key]) for key in ("p", "p_models", "p_draws", "p_equal")),
        f"{100 * record['better']:.0f} %",
        verdict_text(one, record),
        _at_equal_cost(one, record),
        *costs,
    ]


def verdict_text(one: TrackClaims, record: Mapping[Any, Any]) -> str:
    """Return the verdict of a comparison in words.

    Args:
        one: The track.
        record: Its row of `fl.report.kept_tracks.verdicts`.
    """
    if record["verdict"] == NO_OP:
        return f"is {one.title_of(record['no_op'])} (no-op)"
    is_claim = record["verdict"] in (claims.AHEAD, claims.BEHIND)
    if is_claim and record["p_blocks"] > claims.LEVEL:
        return f"{record['verdict']} (not over blocks)"
    return str(record["verdict"])


def _at_equal_cost(one: TrackClaims, record: Mapping[Any, Any]) -> str:
    """Return difference and verdict of an entry beside a baseline of equal cost."""
    table = one.at_equal_cost
    if len(table):
        table = table[(table["family"] == record["family"]) & (table["entry"] == record["entry"])]
    if table.empty:
        return NOTHING
    return f"{one.shown(table['difference'].iloc[0])}, {table['verdict'].iloc[0]}"


def _multiple(share: float) -> str:
    """Return a multiple as text, with two digits below 10."""
    if not np.isfinite(share):
        return NOTHING
    return f"{share:.2g}" if 0 < share < 10 else f"{share:,.0f}"
