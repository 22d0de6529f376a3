"""What is claimed on tracks: the verdicts of each, and what of them stays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd

from fl.base.hashes import digest
from fl.base.schema import COMPLETE, SHARES
from fl.plan import track as track_file
from fl.plan.track import Track
from fl.report import claims, kept_tracks, track_verdicts
from fl.report.cells import MINUS, number
from fl.report.kept_tracks import TrackResults
from fl.report.track_verdicts import EQUAL, MISSING_RUN, NO_OP, UNSTABLE

VERDICTS = (claims.AHEAD, claims.BEHIND, EQUAL, claims.OPEN, UNSTABLE, NO_OP, MISSING_RUN)
"""Verdicts in the order of legends and counts."""

CLAIMED = (claims.AHEAD, claims.BEHIND, EQUAL)
"""Verdicts that claim something."""

COST = "operations"
"""Cost of figures, and of advice."""
COSTS = (COST, "bytes")
"""Costs at which entries are compared with a baseline."""


@dataclass(frozen=True)
class TrackClaims:
    """A track and what is claimed on it.

    Attributes:
        file: What the track's file says.
        verdicts: A row for each comparison, `fl.report.track_verdicts.verdicts`.
        at_equal_cost: By cost of `COSTS`, the same beside a baseline of equal cost, without what
            costs too much.
        means: Mean over draws of ``value`` (mean over clients), ``bytes`` and ``operations``, by
            budget, entry and clients.
        titles: Names of entries in print.
        about: By budget, what is known of the track's file when its entries were trained.
        second: Verdicts of the track with other tuning and scored clients; None if not trained.
        longer: By larger budget, verdicts beside baselines of the same budget.
        floors: By family, the value of its clients without any model (`fl.report.kept_tracks`).
        above_floor: By family, the number of draws in which its baseline is better than that.
    """

    file: Track
    verdicts: pd.DataFrame
    at_equal_cost: Mapping[str, pd.DataFrame]
    means: pd.DataFrame
    titles: Mapping[str, str]
    about: Mapping[str, Mapping[str, str]]
    second: pd.DataFrame | None = None
    longer: Mapping[int, pd.DataFrame] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    above_floor: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the track."""
        return self.file.name

    @property
    def clients(self) -> int:
        """Number of clients in the comparison with the most; 0 if nothing is tested."""
        count = self.verdicts["n"].max()
        return 0 if math.isnan(count) else int(count)

    @property
    def unit(self) -> float:
        """Factor from differences to what is shown: points of shares, units of other metrics."""
        return 100.0 if self.file.metric in SHARES else 1.0

    @property
    def unit_text(self) -> str:
        """Unit of differences that are shown."""
        return "points" if self.file.metric in SHARES else f"lower {self.file.metric.upper()}"

    @property
    def margin_unit(self) -> str:
        """Unit of the margin."""
        if self.file.metric not in SHARES:
            return f"of {self.file.metric.upper()}"
        return "point" if self.file.margin == 0.01 else "points"

    def shown(self, difference: float) -> str:
        """Return a difference as text, with one digit more than the margin; more is better."""
        if self.file.metric in SHARES:
            return number(difference, self.file.metric, signed=True)
        digits = max(0, 1 - math.floor(math.log10(self.file.margin)))
        text = f"{difference:+.{digits}f}"
        return (text if round(difference, digits) else text.lstrip("+-")).replace("-", MINUS)

    def value_of(self, entry: str, role: str) -> float:
        """Return the mean value of an entry at the first budget; NaN if it is not known."""
        means = self.means[self.means["budget"] == 1]
        means = means[(means["entry"] == entry) & (means["clients"] == role)]
        return float(means["value"].iloc[0]) if len(means) else math.nan

    def title_of(self, entry: str) -> str:
        """Return the name of an entry in print."""
        return self.titles.get(entry, entry)


def read(folder: Path, names: Sequence[str] | None = None) -> list[TrackClaims]:
    """Return what is claimed on tracks of a config folder.

    Args:
        folder: The config folder.
        names: Names of the tracks; by default of all that have kept results.

    Raises:
        FedloomError: If a track's file is wrong, or its results cannot be read.
    """
    names = kept_tracks.names(folder) if names is None else names
    files = [track_file.read(folder, name) for name in names]
    levels = (claims.LEVEL, limit_of_all(files))
    tracks = []
    for file in files:
        place, second = (kept_tracks.folder_of(folder, file.name, i) for i in (0, 1))
        second_results = kept_tracks.read(second) if second.exists() else None
        tracks.append(of_track(file, kept_tracks.read(place), second_results, levels))
    return tracks


def of_track(
    file: Track,
    results: TrackResults,
    second_results: TrackResults | None = None,
    levels: Sequence[float] = (claims.LEVEL,),
) -> TrackClaims:
    """Return what is claimed on a track by its kept results.

    Args:
        file: What the track's file says.
        results: Its kept results.
        second_results: Those with other tuning and scored clients, if there are any.
        levels: Levels at which p-values decide, see `fl.report.client_tests.family_test`.
    """
    keys = ["budget", "entry", "clients"]
    complete = results.runs["state"] == COMPLETE  # A run that diverged has ended early.
    costs = results.runs.groupby(keys)[[]].first()
    costs = costs.join(results.runs[complete].groupby(keys)[["bytes", "operations"]].mean())
    # Values of the floor have no run, and a run that diverged has the values of the floor.
    scores = []
    for budget, entry, role in costs.index:
        values = kept_tracks.entry_values(results, entry, role, budget)
        scores.append(math.nan if values is None else kept_tracks.mean_over_clients(values))
    return TrackClaims(
        file,
        track_verdicts.verdicts(results, file, levels=levels),
        {cost: track_verdicts.at_equal_cost(results, file, cost) for cost in COSTS},
        costs.assign(value=scores).reset_index(),
        dict(zip(results.runs["entry"], results.runs["title"], strict=True)),
        results.about,
        None if second_results is None else track_verdicts.verdicts(second_results, file),
        {
            int(times): track_verdicts.verdicts(results, file, int(times))
            for times in sorted(results.runs["budget"].unique())
            if times > 1
        },
        {
            name: kept_tracks.mean_over_clients(kept_tracks.floor_values(results, family.clients))
            for name, family in file.families.items()
        },
        {
            name: int((track_verdicts.gains_on_floor(results, file, family) > 0).sum())
            for name, family in file.families.items()
        },
    )


def comparison_hash(track: Track) -> str:
    """Return a hash of what a track's file says of comparisons, to see whether it was changed."""
    families = {name: asdict(family) for name, family in track.families.items()}
    return digest([families, track.margin, track.diverged])


def claims_again(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of a table of verdicts, with ``verdict_second``; NaN if it is in no row."""
    claimed = first[first["verdict"].isin(CLAIMED)]
    columns = ["family", "entry", "other"]
    verdicts = second[[*columns, "verdict"]]
    return claimed.merge(verdicts, on=columns, how="left", suffixes=("", "_second"))


def share_kept(first: pd.DataFrame, second: pd.DataFrame) -> tuple[int, int]:
    """Return how many claims of a first table of verdicts a second one keeps, of those it has."""
    pairs = claims_again(first, second).dropna(subset=["verdict_second"])
    return int((pairs["verdict"] == pairs["verdict_second"]).sum()), len(pairs)


def claims_of_all(tracks: Sequence[TrackClaims]) -> tuple[int, int]:
    """Return how many claims stay if all families are corrected together, and the claims."""
    limit, stay, count = limit_of_all([track.file for track in tracks]), 0, 0
    for track in tracks:
        p = deciding_p(track.verdicts).dropna()
        stay, count = stay + int((p <= limit).sum()), count + len(p)
    return stay, count


def limit_of_all(files: Sequence[Track]) -> float:
    """Return the largest p of a claim that stays if all families are corrected together.

    A family is tested twice, for differences and for equality; the correction is Bonferroni's.
    """
    return claims.LEVEL / (2 * sum(len(file.families) for file in files))


def deciding_p(verdicts: pd.DataFrame) -> pd.Series:
    """Return the p-value on which each verdict rests; NaN where it claims nothing."""
    verdict = verdicts["verdict"]
    p = verdicts["p"].where(verdict.isin([claims.AHEAD, claims.BEHIND]))
    return p.where(verdict != EQUAL, verdicts["p_equal"])


def families_of(tracks: Sequence[TrackClaims]) -> dict[str, str]:
    """Return the baseline's title of each family of the tracks, by the family's name."""
    return {
        name: track.title_of(family.baseline)
        for track in tracks
        for name, family in track.file.families.items()
    }


def sorted_entries(tracks: Sequence[TrackClaims], family: str) -> list[str]:
    """Return the entries of a family, the best first: by mean place over the tracks.

    A place is the share of a track's differences that are lower. Entries that are not tested, as
    they are at their no-op, have the place of a difference of 0.
    """
    places = []
    for track in tracks:
        rows = track.verdicts[track.verdicts["family"] == family].set_index("entry")
        places.append(rows["difference"].fillna(0.0).rank(pct=True))
    mean = pd.concat(places, axis=1).mean(axis=1) if places else pd.Series(dtype="float64")
    return [*map(str, mean.sort_values(ascending=False, kind="stable").index)]


def tally(tracks: Sequence[TrackClaims], family: str) -> pd.DataFrame:
    """Return the number of tracks with each verdict, and of all ``tracks``, by entry of a family.

    Args:
        tracks: The tracks.
        family: Name of the family.
    """
    rows = pd.concat(track.verdicts[track.verdicts["family"] == family] for track in tracks)
    table = pd.crosstab(rows["entry"], rows["verdict"]).reindex(columns=[*VERDICTS], fill_value=0)
    return table.loc[rows["entry"].unique()].assign(tracks=table.sum(axis=1))


def titles_of(tracks: Sequence[TrackClaims]) -> dict[str, str]:
    """Return the names of the tracks' entries in print."""
    return {entry: title for track in tracks for entry, title in track.titles.items()}
