"""Sentences on the verdicts of all tracks: counts, leads, their cost, advice, and doubts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from fl.base.units import quantity
from fl.report import claims
from fl.report.track_claims import (
    COST,
    COSTS,
    VERDICTS,
    TrackClaims,
    claims_of_all,
    count_kept,
    families_of,
    tally,
    titles_of,
)
from fl.report.track_verdicts import EQUAL, MISSING_RUN, NO_OP, UNSTABLE

FAIR = 1.05
"""Multiple of the baseline's cost up to which an entry costs no more, in sentences."""

REFERENCES = ("local", "pooled")
"""Entries that are no federated method, which no advice recommends."""

MOST_NAMED = 5
"""Number of entries that a sentence names."""

ADDED_NOTE = " *: added after first results were seen."
"""Sentence on entries with a star."""

LARGE_SKEW = 1.0
"""Skewness of clients' differences above which a claim is counted as doubtful."""

FEWEST_TRACKS = 3
"""Number of tracks below which there is no advice."""

_COUNTED = {
    claims.AHEAD: "ahead",
    claims.BEHIND: "behind",
    EQUAL: "equal within the margin",
    claims.OPEN: "not told apart",
    UNSTABLE: "unstable (diverged in some draw, or no better than a client's most frequent class)",
    NO_OP: "not tested (tuning switched the method off)",
    MISSING_RUN: "without a verdict (a run is missing)",
}


def sentences(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return sentences on the verdicts of all tracks: counts, leads of each family, costs."""
    counts = pd.concat(track.verdicts["verdict"] for track in tracks).value_counts()
    total = int(counts.sum())
    by_verdict = ", ".join(f"{counts[v]} {_COUNTED[v]}" for v in VERDICTS if v in counts)
    clients = sum(track.client_count for track in tracks)
    texts = [
        f"{quantity(total, 'comparison')} of a method with a baseline on "
        f"{quantity(len(tracks), 'track')}, over {clients:,} clients who chose nothing: "
        f"{by_verdict}. {_stability_text(tracks)}"
    ]
    for family, baseline in families_of(tracks).items():
        texts.append(_leads_text(tracks, family, baseline))
    priced = [track for track in tracks if not track.at_equal_cost[COST].empty]
    if not priced:
        texts.append(
            "No baseline is trained for more rounds yet, so that it is open which leads are a "
            "matter of speed."
        )
    elif leads := sum(int((track.verdicts["verdict"] == claims.AHEAD).sum()) for track in priced):
        names = ", ".join(track.name for track in priced)
        text = f"On {names} baselines are trained for longer, too. There are "
        text += f"{quantity(leads, 'lead')} there. {' '.join(_cost_text(priced, c) for c in COSTS)}"
        open_tracks = [track.name for track in tracks if track.at_equal_cost[COST].empty]
        if open_tracks:
            text += f" Not trained for longer are baselines of {', '.join(open_tracks)}."
        texts.append(" ".join([text, *_longer_texts(tracks)]))
    return texts


def _longer_texts(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return a sentence for each larger budget: how many entries are still ahead, and where."""
    texts = []
    for times in sorted({times for track in tracks for times in track.longer}):
        tables = [(track.name, track.longer[times]) for track in tracks if times in track.longer]
        leads = {name: int((table["verdict"] == claims.AHEAD).sum()) for name, table in tables}
        where = ", ".join(f"{name} {count}" for name, count in leads.items() if count)
        count = sum(len(table) for _, table in tables)
        text = f"With {times} times the rounds for all, tuned again, {sum(leads.values())} of "
        text += f"{quantity(count, 'comparison')} are ahead"
        texts.append(f"{text} ({where})." if where else f"{text}.")
    return texts


def _stability_text(tracks: Sequence[TrackClaims]) -> str:
    """Return on which claims stay: with one correction for all families, and with other clients."""
    stay, count = claims_of_all(tracks)
    text = f"With one correction for all {tracks[0].families} families {stay} of {count} claims "
    text += "stay."
    divided = [(track, track.second) for track in tracks if track.second is not None]
    if divided:
        kept = [count_kept(track.verdicts, second) for track, second in divided]
        of_tracks = (f"{t.name} {n} of {m}" for (t, _), (n, m) in zip(divided, kept, strict=True))
        text += " With other tuning and scored clients of the pool "
        text += f"{sum(n for n, _ in kept)} of {sum(m for _, m in kept)} stay "
        text += f"({', '.join(of_tracks)})."
    return text


def _leads_text(tracks: Sequence[TrackClaims], family: str, baseline: str) -> str:
    """Return a sentence on the entries of a family that are ahead on most tracks."""
    counts, titles = tally(tracks, family), titles_of(tracks)
    leads: dict[str, list[tuple[float, str]]] = {}
    for track in tracks:
        rows = track.verdicts[track.verdicts["family"] == family]
        for row in rows[rows["verdict"] == claims.AHEAD].to_dict("records"):
            margins = row["difference"] / track.file.margin
            text = f"{track.name} {track.shown(row['difference'])}"
            leads.setdefault(str(row["entry"]), []).append((margins, text))
    if not leads:
        return f"{family.capitalize()}: nothing is ahead of {baseline} on any track."
    worse = counts[claims.BEHIND] + counts[UNSTABLE]
    order = sorted(leads, key=lambda e: (-len(leads[e]), worse[e], -max(leads[e])[0]))
    named = []
    for entry in order[:MOST_NAMED]:
        where = ", ".join(text for _, text in leads[entry])
        tracks_text = quantity(int(worse[entry]), "track")
        end = f"; behind or unstable on {tracks_text}" if worse[entry] else ""
        named.append(f"{titles[entry]}{_mark(tracks, entry)} ({where}{end})")
    unnamed = len(order) - len(named)
    end = f", and {quantity(unnamed, 'other')}" if unnamed else ""
    note = ADDED_NOTE if "*" in "".join(named) else ""
    return f"{family.capitalize()}: ahead of {baseline} are {', '.join(named)}{end}.{note}"


def _mark(tracks: Sequence[TrackClaims], entry: str) -> str:
    """Return a star for an entry that was added to a track after first results were seen."""
    return "*" if any(entry in track.file.added for track in tracks) else ""


def _cost_text(tracks: Sequence[TrackClaims], cost: str) -> str:
    """Return sentences on leads that cost no more than the baseline, and on the others."""
    pair = ["family", "entry"]
    costly = lasting = unpriced = cheap = 0
    for track in tracks:
        ahead = track.verdicts[track.verdicts["verdict"] == claims.AHEAD][[*pair, cost]]
        is_costly = ahead[cost] > FAIR
        cheap, costly = cheap + int((~is_costly).sum()), costly + int(is_costly.sum())
        at_cost = track.at_equal_cost[cost][[*pair, "verdict"]]
        verdicts = ahead[is_costly].merge(at_cost, on=pair, how="left")["verdict"]
        lasting += int((verdicts == claims.AHEAD).sum())
        unpriced += int(verdicts.isna().sum())
    text = f"{cheap} {'takes' if cheap == 1 else 'take'} no more {cost} than the baseline"
    if costly == 1:
        end = f"{'is' if lasting else 'is not'} ahead of a baseline with as many"
        text += f"; the other one {'has more than the longest' if unpriced else end}"
    elif costly:
        text += f"; of the other {costly}, {lasting or 'none'} "
        text += f"{'are' if lasting > 1 else 'is'} ahead of a baseline with as many"
        if unpriced:
            text += f", and {unpriced} {'has' if unpriced == 1 else 'have'} more than the longest"
    return f"{text}."


def advice(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return what to do by the verdicts, a sentence for each family; nothing that no track says.

    A method is named if it is ahead on two tracks or more, beside a baseline of equal operations
    too, and behind or unstable on none.
    """
    if len(tracks) < FEWEST_TRACKS:
        return [f"{quantity(len(tracks), 'track')}: too few for advice."]
    steps = []
    titles = {entry: title + _mark(tracks, entry) for entry, title in titles_of(tracks).items()}
    for family, baseline in families_of(tracks).items():
        counts = tally(tracks, family)
        methods = counts.drop(index=[*REFERENCES], errors="ignore")
        leads = [entry for track in tracks for entry in _leads_at_equal_cost(track, family)]
        lasting = pd.Series(leads, dtype=object).value_counts().reindex(methods.index, fill_value=0)
        worse = methods[claims.BEHIND] + methods[UNSTABLE]
        winners = methods[(lasting > 1) & (worse == 0)]
        winners = winners.sort_values(claims.AHEAD, ascending=False, kind="stable")
        losers = counts[
            (counts[claims.BEHIND] > counts["tracks"] / 2) & (counts[claims.AHEAD] == 0)
        ]
        idle = methods[methods[NO_OP] > methods["tracks"] / 2]
        text = f"{family.capitalize()}: start with {baseline}, the baseline; "
        text += (
            f"then try {_names_text(winners, titles, 'or')}"
            if len(winners)
            else "no federated method is ahead on two tracks at equal operations, and behind or "
            "unstable on none"
        )
        if len(losers):
            text += f"; behind on most tracks: {_names_text(losers, titles, 'and')}"
        if len(idle):
            text += f"; switched off by tuning on most: {_names_text(idle, titles, 'and')}"
        steps.append(f"{text}.{ADDED_NOTE if '*' in text else ''}")
    return steps


def _leads_at_equal_cost(track: TrackClaims, family: str) -> list[str]:
    """Return the entries of a family that are ahead, also of a baseline of equal operations.

    Where no baseline was trained for as many, an entry has to cost no more than its own.
    """
    at_cost = track.at_equal_cost[COST]
    verdicts = at_cost[at_cost["family"] == family].set_index("entry")["verdict"]
    rows = track.verdicts[track.verdicts["family"] == family]
    ahead = rows[rows["verdict"] == claims.AHEAD].set_index("entry")[COST]
    return [
        str(entry)
        for entry, cost in ahead.items()
        if (verdicts[str(entry)] == claims.AHEAD if entry in verdicts.index else cost <= FAIR)
    ]


def _names_text(counts: pd.DataFrame, titles: Mapping[str, str], word: str) -> str:
    names = [titles[str(entry)] for entry in counts.index[:MOST_NAMED]]
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def added_later(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return a sentence on entries that were added after first results; none without any."""
    titles = titles_of(tracks)
    added = dict.fromkeys(entry for track in tracks for entry in track.file.added)
    if not added:
        return []
    names = " and ".join(titles.get(entry, entry) for entry in added)
    known = "were added when first results were seen"
    return [f"That all entries were named before: {names} (*) {known}."]


def switched_off(tracks: Sequence[TrackClaims]) -> str:
    """Return a sentence on what is not claimed of entries that tuning switched off."""
    text = (
        "That a method does no harm: where tuning switches it off it is another entry, and is not "
        "tested. Methods with such a value in their grid are never behind there, others can be"
    )
    losses = {
        (track.name, track.title_of(str(row["entry"]))): row["without_no_op"] / track.file.margin
        for track in tracks
        for row in track.verdicts.to_dict("records")
        if row["without_no_op"] < math.inf  # Another point was tried.
    }
    if losses:
        large = [f"{title} on {name}" for (name, title), loss in losses.items() if loss < -1.001]
        kept = len(losses) - len(large)
        text += f". If their own key had to be on, {kept} of {len(losses)} such entries "
        text += "would lose no more than the margin on tuning clients"
        text += f"; more would lose {', '.join(large)}" if large else ""
    return f"{text}."


def skewed(tracks: Sequence[TrackClaims]) -> str:
    """Return a sentence on claims that the skew of clients' differences may have made."""
    tables = pd.concat(track.verdicts for track in tracks)
    claimed = tables[tables["verdict"].isin([claims.AHEAD, claims.BEHIND])]
    sign = np.where(claimed["verdict"] == claims.AHEAD, 1, -1)
    count = int((sign * claimed["skew"] < -LARGE_SKEW).sum())
    return (
        "That clients' differences are symmetric, as the test takes for granted. Where a few "
        "clients gain much and the others lose a little, it says *behind* too often, and *ahead* "
        "where a few lose much ([how often](../guide/analyse.md#claims-about-clients)). Of "
        f"{len(claimed)} claims {count} {'has' if count == 1 else 'have'} that direction, with a "
        f"skewness above {LARGE_SKEW:g}."
    )
