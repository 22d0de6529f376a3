"""What the tracks' pages say of clients: the verdicts of each track, and sentences over all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from fl.base.hashes import digest
from fl.base.schema import COMPLETE, SHARES
from fl.base.units import quantity
from fl.plan import track as track_file
from fl.plan.track import Track
from fl.report import claims, kept_tracks
from fl.report.cells import MINUS, number
from fl.report.kept_tracks import EQUAL, MISSING_RUN, NO_OP, UNSTABLE, TrackResults

VERDICTS = (claims.AHEAD, claims.BEHIND, EQUAL, claims.OPEN, UNSTABLE, NO_OP, MISSING_RUN)
"""Verdicts in the order of legends and counts."""

CLAIMED = (claims.AHEAD, claims.BEHIND, EQUAL)
"""Verdicts that claim something."""

COST = "operations"
"""Cost of figures, and of advice."""
COSTS = (COST, "bytes")
"""Costs at which entries are compared with a baseline."""
FAIR = 1.05
"""Multiple of the baseline's cost up to which an entry costs no more, in sentences."""

REFERENCES = ("local", "pooled")
"""Entries that are no federated method, which no advice recommends."""

MOST_NAMED = 5
"""Number of entries that a sentence names."""

LARGE_SKEW = 1.0
"""Skewness of clients' differences above which a claim is counted as doubtful."""

FEWEST_TRACKS = 3
"""Number of tracks below which there is no advice."""


@dataclass(frozen=True)
class TrackClaims:
    """A track and what is claimed on it.

    Attributes:
        file: What the track's file says.
        verdicts: A row for each comparison, `fl.report.kept_tracks.verdicts`.
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
        kept_tracks.verdicts(results, file, levels=levels),
        {cost: kept_tracks.at_equal_cost(results, file, cost) for cost in COSTS},
        costs.assign(value=scores).reset_index(),
        dict(zip(results.runs["entry"], results.runs["title"], strict=True)),
        results.about,
        None if second_results is None else kept_tracks.verdicts(second_results, file),
        {
            int(times): kept_tracks.verdicts(results, file, int(times))
            for times in sorted(results.runs["budget"].unique())
            if times > 1
        },
        {
            name: kept_tracks.mean_over_clients(kept_tracks.floor_values(results, family.clients))
            for name, family in file.families.items()
        },
        {
            name: int((kept_tracks.gains_on_floor(results, file, family) > 0).sum())
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
        text += f". Of {len(losses)} such entries, whose own key was switched off, "
        text += f"{len(losses) - len(large)} are within the margin of it on the tuning clients at "
        text += "their best point otherwise"
        text += f", not {', '.join(large)}" if large else ""
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


def sentences(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return five sentences on the verdicts of all tracks: counts, leads, what they rest on."""
    counts = pd.concat(track.verdicts["verdict"] for track in tracks).value_counts()
    total = int(counts.sum())
    by_verdict = ", ".join(f"{counts[v]} {_COUNTED[v]}" for v in VERDICTS if v in counts)
    clients = sum(track.clients for track in tracks)
    texts = [
        f"{quantity(total, 'comparison')} of a method with a baseline on "
        f"{quantity(len(tracks), 'track')}, over {clients:,} clients who chose nothing: "
        f"{by_verdict}. {_together(tracks)}"
    ]
    for family, baseline in families_of(tracks).items():
        texts.append(_leads(tracks, family, baseline))
    priced = [track for track in tracks if not track.at_equal_cost[COST].empty]
    if not priced:
        texts.append(
            "No baseline is trained for more rounds yet, so that it is open which leads are a "
            "matter of speed."
        )
    elif leads := sum(int((track.verdicts["verdict"] == claims.AHEAD).sum()) for track in priced):
        names = ", ".join(track.name for track in priced)
        parts = [_cost_text(priced, cost) for cost in COSTS]
        head = f"Baselines are trained for longer, too, on {names}: of {quantity(leads, 'lead')}"
        parts[0] = f"{head} there {parts[0]}"
        open_tracks = [track.name for track in tracks if track.at_equal_cost[COST].empty]
        if open_tracks:
            parts.append(f"not trained for longer are baselines of {', '.join(open_tracks)}")
        texts.append(f"{'; '.join(parts)}.")
    return texts


def _together(tracks: Sequence[TrackClaims]) -> str:
    """Return on which claims stay: with one correction for all families, and with other clients."""
    stay, count = claims_of_all(tracks)
    families = sum(len(track.file.families) for track in tracks)
    text = f"With one correction for all {families} families {stay} of {count} claims stay."
    divided = [(track, track.second) for track in tracks if track.second is not None]
    if divided:
        kept = [share_kept(track.verdicts, second) for track, second in divided]
        of_tracks = (f"{t.name} {n} of {m}" for (t, _), (n, m) in zip(divided, kept, strict=True))
        text += " With other tuning and scored clients of the pool "
        text += f"{sum(n for n, _ in kept)} of {sum(m for _, m in kept)} stay "
        text += f"({', '.join(of_tracks)})."
    return text


_COUNTED = {
    claims.AHEAD: "ahead",
    claims.BEHIND: "behind",
    EQUAL: "equal within the margin",
    claims.OPEN: "not told apart",
    UNSTABLE: "unstable (some run is not better than a guess)",
    NO_OP: "not tested (tuning switched the method off)",
    MISSING_RUN: "without a verdict (a run is missing)",
}


def _leads(tracks: Sequence[TrackClaims], family: str, baseline: str) -> str:
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
        mark = "*" if any(entry in track.file.added for track in tracks) else ""
        named.append(f"{titles[entry]}{mark} ({where}{end})")
    unnamed = len(order) - len(named)
    end = f", and {quantity(unnamed, 'other')}" if unnamed else ""
    note = " *: added after first results were seen." if "*" in "".join(named) else ""
    return f"{family.capitalize()}: ahead of {baseline} are {', '.join(named)}{end}.{note}"


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


def _cost_text(tracks: Sequence[TrackClaims], cost: str) -> str:
    """Return how many leads cost no more than the baseline, and what becomes of the others."""
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
    text = f"{cheap} {_verb(cheap, 'take')} no more {cost} than their baseline"
    if costly:
        text += f", and of {costly} that {_verb(costly, 'take')} more {lasting or 'none'} "
        text += f"{_verb(lasting or 1, 'remain')} beside a baseline with as many"
    return text + (f" ({unpriced} had more than the longest)" if unpriced else "")


def _verb(count: int, verb: str) -> str:
    return f"{verb}s" if count == 1 else verb


def advice(tracks: Sequence[TrackClaims]) -> list[str]:
    """Return what to do by the verdicts, a sentence for each family; nothing that no track says.

    A method is named if it is ahead on two tracks or more, beside a baseline of equal operations
    too, and behind or unstable on none.
    """
    if len(tracks) < FEWEST_TRACKS:
        return [f"{quantity(len(tracks), 'track')}: too few for advice."]
    titles, steps = titles_of(tracks), []
    at_cost = pd.concat(track.at_equal_cost[COST] for track in tracks)
    for family, baseline in families_of(tracks).items():
        counts = tally(tracks, family)
        methods = counts.drop(index=[*REFERENCES], errors="ignore")
        is_ahead = (at_cost["family"] == family) & (at_cost["verdict"] == claims.AHEAD)
        leads = at_cost.loc[is_ahead, "entry"].value_counts().reindex(methods.index, fill_value=0)
        lasting = leads if len(at_cost) else methods[claims.AHEAD]
        worse = methods[claims.BEHIND] + methods[UNSTABLE]
        winners = methods[(methods[claims.AHEAD] > 1) & (lasting > 1) & (worse == 0)]
        winners = winners.sort_values(claims.AHEAD, ascending=False, kind="stable")
        losers = counts[
            (counts[claims.BEHIND] > counts["tracks"] / 2) & (counts[claims.AHEAD] == 0)
        ]
        idle = methods[methods[NO_OP] > methods["tracks"] / 2]
        text = f"{family.capitalize()}: start with {baseline}, the baseline; "
        text += (
            f"then try {_named(winners, titles, 'or')}"
            if len(winners)
            else "no federated method is ahead on two tracks at equal operations, and behind or "
            "unstable on none"
        )
        if len(losers):
            text += f"; behind on most tracks: {_named(losers, titles, 'and')}"
        if len(idle):
            text += f"; switched off by tuning on most: {_named(idle, titles, 'and')}"
        steps.append(f"{text}.")
    return steps


def _named(counts: pd.DataFrame, titles: Mapping[str, str], word: str) -> str:
    names = [titles[str(entry)] for entry in counts.index[:MOST_NAMED]]
    return f" {word} ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
