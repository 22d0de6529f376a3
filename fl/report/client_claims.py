"""What the tracks' pages say of clients: the verdicts of each track, and sentences over all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from fl.base.hashes import digest
from fl.base.schema import SHARES
from fl.base.units import quantity
from fl.plan import track as track_file
from fl.plan.track import Track
from fl.report import claims, kept_tracks
from fl.report.cells import MINUS, number
from fl.report.kept_tracks import EQUAL, MISSING_RUN, NO_OP, Kept

VERDICTS = (claims.AHEAD, claims.BEHIND, EQUAL, claims.OPEN, NO_OP, MISSING_RUN)
"""Verdicts in the order of legends and counts."""

COST = "operations"
"""The cost at which methods are set beside a baseline that is trained longer."""

REFERENCES = ("local", "pooled")
"""Entries that are no federated method, which sentences do not recommend."""

MOST_NAMED = 3
"""Number of entries that a sentence names."""


@dataclass(frozen=True)
class TrackClaims:
    """A track and what is claimed on it.

    Attributes:
        track: The track.
        verdicts: A row for each comparison, `fl.report.kept_tracks.verdicts`.
        at_equal_cost: The same beside a baseline of equal operations, without what costs too much.
        means: Mean over draws of ``value`` (mean over clients), ``bytes`` and ``operations``, by
            budget, entry and clients.
        titles: Names of entries in print.
        about: By budget, what is known of the track's file when its entries were trained.
        second: Verdicts of the track with other tuning and scored clients; None if not trained.
    """

    track: Track
    verdicts: pd.DataFrame
    at_equal_cost: pd.DataFrame
    means: pd.DataFrame
    titles: Mapping[str, str]
    about: Mapping[str, Mapping[str, str]]
    second: pd.DataFrame | None = None

    @property
    def name(self) -> str:
        """Name of the track."""
        return self.track.name

    @property
    def unit(self) -> float:
        """Factor from differences to what is shown: points of shares, units of other metrics."""
        return 100.0 if self.track.metric in SHARES else 1.0

    @property
    def unit_text(self) -> str:
        """Unit of differences that are shown."""
        return "points" if self.track.metric in SHARES else f"lower {self.track.metric.upper()}"

    @property
    def margin_unit(self) -> str:
        """Unit of the margin."""
        return "points" if self.track.metric in SHARES else f"of {self.track.metric.upper()}"

    def shown(self, difference: float) -> str:
        """Return a difference as text, with one digit more than the margin; more is better."""
        if self.track.metric in SHARES:
            return number(difference, self.track.metric, signed=True)
        digits = max(0, 1 - math.floor(math.log10(self.track.margin)))
        text = f"{difference:+.{digits}f}"
        return (text if round(difference, digits) else text.lstrip("+-")).replace("-", MINUS)

    def title_of(self, entry: str) -> str:
        """Return the name of an entry in print."""
        return self.titles.get(entry, entry)


def read(folder: Path) -> list[TrackClaims]:
    """Return what is claimed on each track of a config folder that has kept results.

    Args:
        folder: The config folder.

    Raises:
        FedloomError: If a track's file is wrong, or its results cannot be read.
    """
    found = []
    for name in track_file.names(folder):
        place, second = (kept_tracks.folder_of(folder, name, i) for i in (0, 1))
        if place.exists():
            other = kept_tracks.read(second) if second.exists() else None
            track = track_file.read(folder, name)
            found.append(of_track(track, kept_tracks.read(place), other))
    return found


def of_track(track: Track, kept: Kept, second: Kept | None = None) -> TrackClaims:
    """Return what is claimed on a track by its kept results.

    Args:
        track: The track.
        kept: Its kept results.
        second: Those with other tuning and scored clients, if there are any.
    """
    keys = ["budget", "entry", "clients"]
    costs = kept.runs.groupby(keys)[["bytes", "operations"]].mean()
    # Values of the floor have no run, and a run that diverged has the values of the floor.
    records = []
    for key in costs.index:
        budget, entry, role = key
        values = kept_tracks.entry_values(kept, entry, role, budget)
        records.append(math.nan if values is None else float(values.mean(axis=1).mean()))
    means = costs.assign(value=records).reset_index()
    titles = dict(zip(kept.runs["entry"], kept.runs["title"], strict=True))
    return TrackClaims(
        track,
        kept_tracks.verdicts(kept, track),
        kept_tracks.at_equal_cost(kept, track, COST),
        means,
        titles,
        kept.about,
        None if second is None else kept_tracks.verdicts(second, track),
    )


def decided(track: Track) -> str:
    """Return a hash of what a track's file says of comparisons, to see whether it was changed."""
    families = {name: asdict(family) for name, family in track.families.items()}
    return digest([families, track.margin, track.diverged])


def share_kept(first: pd.DataFrame, second: pd.DataFrame) -> tuple[int, int]:
    """Return how many claims of a first table of verdicts a second one keeps, and their number."""
    both = first.merge(second, on=["family", "entry", "other"], suffixes=("", "_second"))
    both = both[both["verdict"].isin([claims.AHEAD, claims.BEHIND, EQUAL])]
    return int((both["verdict"] == both["verdict_second"]).sum()), len(both)


def families_of(tracks: Sequence[TrackClaims]) -> dict[str, str]:
    """Return the baseline's title of each family of the tracks, by the family's name."""
    return {
        name: one.title_of(family.baseline)
        for one in tracks
        for name, family in one.track.families.items()
    }


def sorted_entries(tracks: Sequence[TrackClaims], family: str) -> list[str]:
    """Return the entries of a family, the best first: by mean place over the tracks.

    A place is the share of a track's differences that are lower. Entries that are not tested, as
    they are at their no-op, have the place of a difference of 0.
    """
    places = []
    for one in tracks:
        rows = one.verdicts[one.verdicts["family"] == family].set_index("entry")
        places.append(rows["difference"].fillna(0.0).rank(pct=True))
    mean = pd.concat(places, axis=1).mean(axis=1) if places else pd.Series(dtype="float64")
    return [*map(str, mean.sort_values(ascending=False, kind="stable").index)]


def sentences(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return five sentences on the verdicts of all tracks: counts, leads, what they rest on."""
    counts = pd.concat(one.verdicts["verdict"] for one in tracks).value_counts()
    total = int(counts.sum())
    by_verdict = ", ".join(f"{counts[v]} {_COUNTED[v]}" for v in VERDICTS if v in counts)
    found = [
        f"{quantity(total, 'comparison')} on {quantity(len(tracks), 'track')}, over "
        f"{sum(_clients(one) for one in tracks):,} clients who chose nothing: {by_verdict}."
    ]
    for family, baseline in families_of(tracks).items():
        found.append(_leads(tracks, family, baseline))
    kept, leads, unpriced = _at_equal_cost(tracks)
    if leads:
        found.append(
            f"Of {quantity(leads, 'lead')}, {kept} stay beside a baseline that is trained for as "
            f"many operations"
            + (f", and {unpriced} cost more than the longest baseline." if unpriced else ".")
        )
    return found


_COUNTED = {
    claims.AHEAD: "ahead",
    claims.BEHIND: "behind",
    EQUAL: "equal within the margin",
    claims.OPEN: "not told apart",
    NO_OP: "at a no-op, where the entry is another one",
    MISSING_RUN: "without a verdict, as a run is missing",
}


def _clients(one: TrackClaims) -> int:
    count = one.verdicts["n"].max()
    return 0 if math.isnan(count) else int(count)


def _leads(tracks: Sequence[TrackClaims], family: str, baseline: str) -> str:
    """Return a sentence on the entries of a family that are ahead on most tracks."""
    counts, titles = tally(tracks, family), _titles(tracks)
    counts = counts.drop(index=[*REFERENCES], errors="ignore")
    ahead = counts[counts[claims.AHEAD] > 0].sort_values(
        [claims.AHEAD, claims.BEHIND], ascending=[False, True], kind="stable"
    )
    if ahead.empty:
        return f"{family.capitalize()}: nothing is ahead of {baseline} on any track."
    named = [
        f"{titles[str(entry)]} on {row[claims.AHEAD]} of {row['tracks']}"
        + (f" (behind on {row[claims.BEHIND]})" if row[claims.BEHIND] else "")
        for entry, row in ahead.head(MOST_NAMED).iterrows()
    ]
    rest = len(ahead) - len(named)
    more = f", and {rest} more on one or more" if rest else ""
    return f"{family.capitalize()}: ahead of {baseline} are {', '.join(named)} tracks{more}."


def tally(tracks: Sequence[TrackClaims], family: str) -> pd.DataFrame:
    """Return the number of tracks with each verdict, and of all ``tracks``, by entry of a family.

    Args:
        tracks: The tracks.
        family: Name of the family.
    """
    rows = pd.concat(one.verdicts[one.verdicts["family"] == family] for one in tracks)
    table = pd.crosstab(rows["entry"], rows["verdict"]).reindex(columns=[*VERDICTS], fill_value=0)
    return table.loc[rows["entry"].unique()].assign(tracks=table.sum(axis=1))


def _titles(tracks: Sequence[TrackClaims]) -> dict[str, str]:
    return {entry: title for one in tracks for entry, title in one.titles.items()}


def _at_equal_cost(tracks: Sequence[TrackClaims]) -> tuple[int, int, int]:
    """Return leads that stay at equal cost, all leads, and leads that cost too much to say."""
    pair = ["family", "entry"]
    kept = leads = unpriced = 0
    for one in tracks:
        ahead = one.verdicts[one.verdicts["verdict"] == claims.AHEAD][pair]
        leads += len(ahead)
        if len(one.at_equal_cost):
            beside = ahead.merge(one.at_equal_cost[[*pair, "verdict"]], how="left")
            kept += int((beside["verdict"] == claims.AHEAD).sum())
            unpriced += int(beside["verdict"].isna().sum())
    return kept, leads, unpriced


def advice(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return what to do by the verdicts, a sentence for each family; nothing that no track says.

    A method is named if it is ahead on two tracks or more, at equal operations too, and behind on
    none.
    """
    titles, steps = _titles(tracks), []
    for family, baseline in families_of(tracks).items():
        counts = tally(tracks, family).drop(index=[*REFERENCES], errors="ignore")
        at_cost = pd.concat(one.at_equal_cost for one in tracks)
        if len(at_cost):
            is_ahead = (at_cost["family"] == family) & (at_cost["verdict"] == claims.AHEAD)
            leads = at_cost.loc[is_ahead, "entry"].value_counts()
            counts["leads"] = leads.reindex(counts.index, fill_value=0)
        else:
            counts["leads"] = counts[claims.AHEAD]
        is_safe = (counts[claims.AHEAD] > 1) & (counts["leads"] > 1) & (counts[claims.BEHIND] == 0)
        safe = counts[is_safe].sort_values("leads", ascending=False, kind="stable")
        bad = counts[(counts[claims.BEHIND] > counts["tracks"] / 2) & (counts[claims.AHEAD] == 0)]
        idle = counts[counts[NO_OP] > counts["tracks"] / 3]
        text = f"{family.capitalize()}: start with {baseline}; "
        text += (
            f"then try {_named(safe, titles, 'or')}" if len(safe) else "nothing is surely better"
        )
        if len(bad):
            text += f"; mostly behind: {_named(bad, titles, 'and')}"
        if len(idle):
            text += f"; often tuned to do nothing: {_named(idle, titles, 'and')}"
        steps.append(f"{text}.")
    return steps


def _named(counts: pd.DataFrame, titles: Mapping[str, str], word: str) -> str:
    names = [titles[str(entry)] for entry in counts.index[:MOST_NAMED]]
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
