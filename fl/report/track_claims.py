"""What is claimed on tracks: the verdicts of each, and what of them stays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
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
        families: Number of the families of all tracks, which one correction takes together.
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
    families: int
    second: pd.DataFrame | None = None
    longer: Mapping[int, pd.DataFrame] = field(default_factory=dict)
    floors: Mapping[str, float] = field(default_factory=dict)
    above_floor: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the track."""
        return self.file.name

    @property
    def client_count(self) -> int:
        """Number of clients in the comparison with the most; 0 if nothing is tested."""
        count = self.verdicts["n"].max()
        return 0 if math.isnan(count) else int(count)

    @property
    def stays(self) -> pd.Series:
        """Whether each verdict is a claim that stays with one correction for all tracks."""
        return deciding_p(self.verdicts) <= limit_of(self.families)

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
        """Return a difference as text; more is better.

        Shares have one decimal, and values of other metrics one digit more than the margin.
        """
        if self.file.metric in SHARES:
            return number(difference, self.file.metric, signed=True)
        digits = max(0, 1 - math.floor(math.log10(self.file.margin)))
        text = f"{difference:+.{digits}f}"
        return (text if round(difference, digits) else text.lstrip("+-")).replace("-", MINUS)

    def value_of(self, entry: str, role: str) -> float:
        """Return the mean value of an entry at the first budget; NaN if it is not known."""
        means = self.first_means(entry, role)
        return float(means["value"].iloc[0]) if len(means) else math.nan

    def first_means(self, entry: str, role: str) -> pd.DataFrame:
        """Return the row of ``means`` of an entry at the first budget; none if it is not there."""
        means = self.means[self.means["budget"] == 1]
        return means[(means["entry"] == entry) & (means["clients"] == role)]

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
    files = {name: track_file.read(folder, name) for name in kept_tracks.names(folder)}
    families = count_families(files.values())
    tracks = []
    for name in files if names is None else names:
        place, second = (kept_tracks.folder_of(folder, name, i) for i in (False, True))
        second_results = kept_tracks.read(second) if second.exists() else None
        results = kept_tracks.read(place)
        tracks.append(of_track(files[name], results, second_results, families=families))
    return tracks


def of_track(
    file: Track,
    results: TrackResults,
    second_results: TrackResults | None = None,
    *,
    families: int,
) -> TrackClaims:
    """Return what is claimed on a track by its kept results.

    Args:
        file: What the track's file says.
        results: Its kept results.
        second_results: Those with other tuning and scored clients, if there are any.
        families: Number of the families of all tracks (`count_families`).
    """
    levels = (claims.LEVEL, limit_of(families))
    keys = ["budget", "entry", "clients"]
    complete = results.runs["state"] == COMPLETE  # A run that diverged has ended early.
    costs = results.runs.groupby(keys)[[]].first()
    costs = costs.join(results.runs[complete].groupby(keys)[["bytes", "operations"]].mean())
    # Values of the floor have no run, and a run that diverged has the values of the floor.
    scores = []
    for budget, entry, role in costs.index:
        values = kept_tracks.entry_values(results, entry, role, budget)
        scores.append(math.nan if values is None else kept_tracks.mean_over_clients(values))
    floors, above_floor = {}, {}
    for name, family in file.families.items():
        gains = track_verdicts.gains_on_floor(results, file, family.baseline, family.clients)
        values = kept_tracks.floor_values(results, family.clients)
        floors[name] = kept_tracks.mean_over_clients(values)
        above_floor[name] = int((gains > 0).sum())
    return TrackClaims(
        file=file,
        verdicts=track_verdicts.verdicts(results, file, levels=levels),
        at_equal_cost={cost: track_verdicts.at_equal_cost(results, file, cost) for cost in COSTS},
        means=costs.assign(value=scores).reset_index(),
        titles=dict(zip(results.runs["entry"], results.runs["title"], strict=True)),
        about=results.about,
        families=families,
        second=None if second_results is None else track_verdicts.verdicts(second_results, file),
        longer={
            int(times): track_verdicts.verdicts(results, file, int(times))
            for times in sorted(results.runs["budget"].unique())
            if times > 1
        },
        floors=floors,
        above_floor=above_floor,
    )


def comparison_hash(track: Track) -> str:
    """Return a hash of what a track's file says of comparisons, to see whether it was changed."""
    families = {name: asdict(family) for name, family in track.families.items()}
    return digest([families, track.margin, track.diverged])


def settings_hash(track: Track) -> str:
    """Return a hash of what a track's file says of clients, draws, training and grids."""
    parts = [asdict(track.clients), asdict(track.draws), track.metric]
    parts += [track.dataset, track.partition, track.model]
    return digest([*parts, track.training, track.lr, track.methods, track.no_ops])


def claims_again(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the claims of a table of verdicts, with ``verdict_second``; NaN if it is in no row."""
    claimed = first[first["verdict"].isin(CLAIMED)]
    columns = ["family", "entry", "other"]
    verdicts = second[[*columns, "verdict"]]
    return claimed.merge(verdicts, on=columns, how="left", suffixes=("", "_second"))


def count_kept(first: pd.DataFrame, second: pd.DataFrame) -> tuple[int, int]:
    """Return how many claims of a first table of verdicts a second one keeps, of those it has."""
    pairs = claims_again(first, second).dropna(subset=["verdict_second"])
    return int((pairs["verdict"] == pairs["verdict_second"]).sum()), len(pairs)


def claims_of_all(tracks: Sequence[TrackClaims]) -> tuple[int, int]:
    """Return how many claims stay if all families are corrected together, and the claims."""
    stay = sum(int(track.stays.sum()) for track in tracks)
    return stay, sum(int(track.verdicts["verdict"].isin(CLAIMED).sum()) for track in tracks)


def count_families(files: Iterable[Track]) -> int:
    """Return the number of families of tracks."""
    return sum(len(file.families) for file in files)


def limit_of(families: int) -> float:
    """Return the largest p of a claim that stays if families are corrected together.

    A family is tested twice, for differences and for equality; the correction is Bonferroni's.
    """
    return claims.LEVEL / (2 * families)


def deciding_p(verdicts: pd.DataFrame) -> pd.Series:
    """Return the p-value on which each verdict rests; NaN where it claims nothing."""
    verdict = verdicts["verdict"]
    p = verdicts["p"].where(verdict.isin([claims.AHEAD, claims.BEHIND]))
    return p.where(verdict != EQUAL, verdicts["p_equal"])


def families_of(tracks: Sequence[TrackClaims]) -> dict[str, str]:
    """Return the title of each family's baseline, or of several, by the family's name."""
    titles: dict[str, list[str]] = {}
    for track in tracks:
        for name, family in track.file.families.items():
            titles.setdefault(name, []).append(track.title_of(family.baseline))
    return {name: " or ".join(dict.fromkeys(of_family)) for name, of_family in titles.items()}


def sorted_entries(tracks: Sequence[TrackClaims], family: str) -> list[str]:
    """Return the entries of a family, the best first: by mean place over the tracks.

    A place is the share of a track's differences that are lower. An entry at its no-op has the
    difference of the entry that it is, which is 0 of the baseline.
    """
    places = []
    for track in tracks:
        rows = track.verdicts[track.verdicts["family"] == family].set_index("entry")
        of_other = rows["no_op"].map(rows["difference"]).fillna(0.0)
        is_off = rows["verdict"] == NO_OP
        places.append(rows["difference"].mask(is_off, of_other).rank(pct=True))
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
