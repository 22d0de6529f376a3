"""Comparison of a method with all methods of the tracks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fl.base import registry
from fl.base.arithmetic import PORTABLE
from fl.base.errors import ConfigError, DataError, Location, unknown_name
from fl.base.schema import GLOBAL
from fl.base.units import quantity
from fl.notebook.display import short_traceback
from fl.notebook.keys import entry_name
from fl.notebook.run import FOLDER
from fl.notebook.track_runs import TrackRuns
from fl.plan import study_files
from fl.plan.config import Values, named_entries, read_settings, read_yaml
from fl.report import claims, latex, page, track_page, tracks
from fl.report.cells import number, probability
from fl.store.import_export import EXACT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CALL = Location("fl.compare")

TEXT_BY_VERDICT = {
    claims.AHEAD: "behind",
    claims.BEHIND: "ahead of",
    claims.OPEN: "no significant difference to",
}
"""Texts before the names of methods that are compared with this one, by their verdicts."""

CLIENT_KEYS = {"dataset", "partition"}
"""Keys of an entry that would change the clients of a track; they are refused."""

EQUAL_POINTS = 1e-3
"""Points by which equal results may differ, as published ones are rounded."""

BUDGET_KEYS = {"rounds", "local_epochs", "local_steps", "batch_size", "train_on", "start"}
"""Keys of an entry that change its budget; a remark tells that the budget is compared too."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of `fl.compare`; printed, it is a text, and in a notebook a table.

    Attributes:
        method: Name of the method.
        lines: Results of the method and of the published methods, `fl.report.tracks.COLUMNS`.
        table: The comparisons in which the method takes part, a row for each track: ``difference``
            of accuracy over draws with bounds ``low`` and ``high``, ``p``, ``p_corrected`` (with
            the published comparisons of its ``family``), ``p_equal`` (within one point) and
            ``verdict``.
        tests: All comparisons, of which ``table`` is a part.
        family_sizes: Number of comparisons that are corrected together, by family of ``table``.
        remarks: Remarks, such as a failed check.
    """

    method: str
    lines: pd.DataFrame
    table: pd.DataFrame
    tests: pd.DataFrame
    family_sizes: Mapping[str, int]
    remarks: tuple[str, ...]

    def __repr__(self) -> str:
        texts = [self._track_text(str(track)) for track in self.lines["track"].unique()]
        counts = (f"for {n} comparisons with {family}" for family, n in self.family_sizes.items())
        rule = "nothing is tested"
        if self.family_sizes:
            test = claims.flip_rule(int(self.table["n"].max()))
            n_tracks = quantity(self.lines["track"].nunique(), "track")
            rule = f"{test}, corrected by step-down maxT {' and '.join(counts)} in {n_tracks}, 5 %"
        texts.append(f"({rule})")
        return "\n".join([*texts, *self.remarks])

    def _repr_html_(self) -> str:
        return page.table_html(track_page.method_table(self.lines, self.tests, self.method))

    @short_traceback
    def to_latex(self, track: str | None = None) -> str:
        """Return a table in LaTeX: the method on all tracks, or all methods on one of them.

        Args:
            track: Name of the track.

        Raises:
            FedloomError: For a track that was not compared.
        """
        if track is None:
            table = track_page.method_table(self.lines, self.tests, self.method)
        else:
            names = set(self.lines["track"])
            if track not in names:
                raise unknown_name(CALL / "to_latex", "track", track, names)
            is_own = self.lines["method"] == self.method
            titles = self.lines["title"].mask(is_own, self.lines["title"] + " (ours)")
            table = track_page.ranking(self.lines.assign(title=titles), self.tests, track)
        head = f"% needs {latex.PREAMBLE}\n{latex.FITTED}\n{latex.UNICODE}\n"
        return head + latex.to_latex(table, table.name)

    @short_traceback
    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw the method's difference from its baseline on each track, other methods in grey.

        Args:
            axes: Axes to draw on; by default those of a new figure.

        Raises:
            FedloomError: If nothing was tested.
        """
        if self.table.empty:
            raise DataError(f"plot: {self.method} has no comparison to draw")
        return track_page.plot_method(self.lines, self.tests, self.method, axes)

    def _track_text(self, track: str) -> str:
        scores = tracks.scores_of(self.lines, track)
        if self.method not in scores:
            return f"{track}: {self.method} cannot be compared, because no draw has all its runs"
        mean_ranks = tracks.ranks(scores)
        lost = int(scores[self.method].isna().sum())
        draws = f"{len(scores)} draws, {lost} of them lost" if lost else f"{len(scores)} draws"

        def place(ranks: pd.Series) -> str:
            return f"{int((ranks < ranks[self.method]).sum()) + 1} of {len(ranks)}"

        mean = number(scores[self.method].mean(), "accuracy")
        head = (
            f"{track}: {self.method} has {mean} %, rank {place(mean_ranks)} by mean rank "
            f"{mean_ranks[self.method]:.1f} over {draws}"
        )
        stages = self.lines[self.lines["track"] == track].groupby("method")["stage"].first()
        ranks_of_kind = mean_ranks[stages.reindex(mean_ranks.index) == stages[self.method]]
        kind = "shared models" if stages[self.method] == GLOBAL else "personalised methods"
        head += f", {place(ranks_of_kind)} {kind}"
        rows_of_track = self.table[self.table["track"] == track]
        tests = rows_of_track[rows_of_track["method"] == self.method]
        for row in tests.to_dict("records"):
            gain, low, high = (
                number(row[key], "accuracy", signed=True) for key in ("difference", "low", "high")
            )
            head += f"\n  from {row['other']} {gain} ({low} to {high}), corrected p "
            head += f"{probability(row['p_corrected'])}: {claims.verdict_text(row)}"
            head += ", equal within one point" if claims.equality_text(row) else ""
        from_others = rows_of_track[rows_of_track["other"] == self.method]
        for (verdict, reason), group in from_others.groupby(["verdict", "reason"], sort=False):
            text = TEXT_BY_VERDICT.get(str(verdict), str(verdict))
            text += f" ({reason})" if reason else ""
            head += f"\n  {text}: {', '.join(group['method'])}"
        return head


@short_traceback
def compare(
    method: str | type,
    *,
    only: str | None = None,
    config: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Comparison:
    """Train a method on the tracks and compare it with all published methods.

    It is tested in the same family as on the page of the tracks: a personalised method against
    FedAvg-FT, one that is scored by its shared model against FedAvg, corrected with all published
    comparisons of the kind (of one track alone, if ``only`` names it). FedAvg is trained too, to
    check that it has its published results. Runs are those of `fl.run`: existing runs are not
    trained again.

    Args:
        method: Name of a method, a class as in `fl.run`, or the name of an entry of the tracks.
        only: Name of one track; by default all tracks.
        config: Config folder, by default ``config`` in the working directory. If it has no tracks,
            those of the package are used.
        progress: Whether to show a progress bar.
        keys: Hyper-parameters and training keys of the entry. A list is a grid, whose point is
            chosen as those of the published methods were: by validation data, on the draws of the
            study ``tuning-TRACK``. Without ``lr``, the grid has the eight rates of that study. A
            track without such a study has its own rates, and a point is chosen in each draw.

    Raises:
        FedloomError: If there are no published results, for keys that would change a track's data
            or clients, and as `fl.run`.
    """
    folder = Path(config or FOLDER)
    for key in CLIENT_KEYS & keys.keys():
        advice = "leave it out; a track has its own data and clients"
        raise ConfigError(CALL / key, "would change the track", advice=advice)
    tracks_folder = tracks.folder_of(folder)
    published = tracks.read_published(tracks_folder)
    if (folder / "config.yaml").exists():
        read_settings(folder)  # Its plugins may have the method.
    study_by_track = {
        track: _read_track(study_files.file(tracks_folder, name))
        for track, name in study_files.tracks(tracks_folder).items()
    }
    published_tracks = [track for track in study_by_track if track in set(published["track"])]
    if only is not None and only not in published_tracks:
        raise unknown_name(CALL / "only", "published track", only, published_tracks)
    if isinstance(method, str):
        labels = {label for study in study_by_track.values() for label in study["methods"]}
        names = {*registry.names("method"), *labels}
        if method not in names:
            location = Location("the method to compare")
            raise unknown_name(location, "method", method, names, "fedloom methods")
    name = method if isinstance(method, str) else entry_name(method)
    lines: list[pd.DataFrame] = []
    checks: list[pd.DataFrame] = []
    remarks = _key_remarks(name, keys)
    for track in [only] if only else published_tracks:
        trained = TrackRuns(folder, tracks_folder, track, study_by_track[track], progress)
        results, run_remarks = trained.results(name, method, keys)
        published_results = published[published["track"] == track]
        results = results[results["draw"].isin(published_results["draw"])]
        other_results = published_results[published_results["method"] != name]
        lines += [other_results, results[results["method"] == name]]
        replaced = published_results[published_results["method"] == name]
        if len(replaced) and (keys or not isinstance(method, str)):
            mean = number(replaced["accuracy"].mean(), "accuracy")
            remarks.append(
                f"{track}: the published {name} has {mean} %; this one stands in its place"
            )
        if name != tracks.CHECK or not keys:
            check = results[results["method"] == tracks.CHECK]
            remarks += _check_remarks(track, published_results, check)
            checks.append(check if name != tracks.CHECK else replaced)
        remarks += run_remarks
    joined = pd.concat(lines, ignore_index=True)
    tests = tracks.compare_with_baselines(joined)
    remarks += _verdict_remarks(name, joined, tests, checks)
    table = tests[(tests["method"] == name) | (tests["other"] == name)]
    is_corrected = tests["family"].isin(table["family"]) & (tests["reason"] == "")
    sizes = {str(family): n for family, n in tests[is_corrected]["family"].value_counts().items()}
    return Comparison(name, joined, table, tests, sizes, tuple(remarks))


def _read_track(path: Path) -> Values:
    """Return the study of a track as its file has it, with entries by name."""
    study = read_yaml(path)
    return {**study, "methods": named_entries(study["methods"], Location(str(path)) / "methods")}


def _key_remarks(name: str, keys: Values) -> list[str]:
    """Return remarks on the keys that a method was given."""
    remarks: list[str] = []
    if keys:
        key_text = ", ".join(f"{key}={value}" for key, value in keys.items())
        remarks.append(f"{name} was given {key_text}")
    if budget := sorted(BUDGET_KEYS & keys.keys()):
        remarks.append(
            f"{name} has its own {', '.join(budget)}; the other methods have the track's budget, "
            "so the comparison is of methods and budgets"
        )
    return remarks


def _check_remarks(track: str, published: pd.DataFrame, check: pd.DataFrame) -> list[str]:
    """Return a remark on whether FedAvg has its published results."""
    tables = [t[t["method"] == tracks.CHECK].set_index("draw") for t in (published, check)]
    earlier, current = tables
    if not current["accuracy"].notna().any():
        return [
            f"{track}: no run of {tracks.CHECK} finished, so that its published results could not "
            "be checked"
        ]
    gap = 100 * (current["accuracy"] - earlier["accuracy"]).dropna()
    if len(gap) == len(earlier) and (gap.abs() < EQUAL_POINTS).all():
        return [f"{track}: {tracks.CHECK} has its published results in all {len(earlier)} draws"]
    remark = f"{track}: the mean of {tracks.CHECK} over {quantity(len(gap), 'draw')} differs by "
    remark += f"{gap.mean():+.2f} points from the published one, a draw by at most "
    remark += f"{gap.abs().max():.2f}{_rounding_text(earlier)}"
    numbers, environments = (
        [", ".join(sorted(set(table[column]) - {""})) for table in tables]
        for column in ("numbers", "environment")
    )
    if numbers[0] != numbers[1]:
        remark += f"; published numbers are of {numbers[0]}, these of {numbers[1]}"
    elif environments[0] == environments[1] and environments[0].startswith(f"{PORTABLE}, "):
        remark += f", although {EXACT}: this is a fault, please report it"
    else:
        published_environment = environments[0] or "an unknown environment"
        remark += f", as it may by rounding: published results are of {published_environment}, "
        remark += f"these of {environments[1] or 'an unknown one'}"
    return [remark]


def _rounding_text(published: pd.DataFrame) -> str:
    """Return how far rounding alone moves a draw of published lines, in brackets."""
    rounding = 100 * published["rounding"].max()
    if math.isnan(rounding):
        return " (how far rounding alone moves it was not measured)"
    return f" (rounding alone moves a draw by up to {rounding:.2f})"


def _verdict_remarks(
    name: str, lines: pd.DataFrame, tests: pd.DataFrame, checks: list[pd.DataFrame]
) -> list[str]:
    """Return a remark on the verdicts of a method with the other results of FedAvg.

    Args:
        name: Name of the method.
        lines: Its lines and the published ones.
        tests: Their comparisons.
        checks: The other lines of FedAvg: those trained now, or the published ones in a comparison
            of FedAvg itself.
    """
    check = pd.concat([*checks, lines.head(0)]).dropna(subset=["accuracy"])
    key = ["track", "method", "draw"]
    merged = lines.merge(check[[*key, "accuracy"]], on=key, suffixes=("", "_check"))
    if not (100 * (merged["accuracy"] - merged["accuracy_check"]).abs() >= EQUAL_POINTS).any():
        return []
    is_replaced = pd.MultiIndex.from_frame(lines[key]).isin(pd.MultiIndex.from_frame(check[key]))
    again = tracks.compare_with_baselines(pd.concat([lines[~is_replaced], check]))
    is_own = (tests["method"] == name) | (tests["other"] == name)
    source = "published" if name == tracks.CHECK else "trained here"
    result = claims.changed_verdicts(tests[is_own], again, ["track"])
    return [f"with the {tracks.CHECK} {source}, {result}"]
