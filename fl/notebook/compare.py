"""Comparison of a method with the entries of the tracks whose results are kept."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from fl.api.task import serves
from fl.api.training import Training
from fl.base import fields, registry
from fl.base.arithmetic import PORTABLE
from fl.base.declaration import declaration_of
from fl.base.errors import ConfigError, DataError, Location, unknown_name
from fl.base.files import write_bytes
from fl.base.schema import DIVERGED, GLOBAL, MISSING, SHARES
from fl.base.units import quantity
from fl.blocks.plotting import Picture
from fl.notebook.display import short_traceback
from fl.notebook.keys import entry_name
from fl.notebook.run import FOLDER, settings_of
from fl.notebook.track_training import TrackTraining, Tuned, kept_choice
from fl.plan import track as track_file
from fl.plan.config import Values
from fl.plan.track import NEWCOMERS, Family, Track
from fl.report import (
    claims,
    kept_tracks,
    latex,
    page,
    track_claims,
    track_figures,
    track_page,
    track_verdicts,
)
from fl.report.cells import Table, number, probability
from fl.report.kept_tracks import TrackResults
from fl.report.track_claims import TrackClaims
from fl.store.import_export import EXACT

CALL = Location("fl.compare")

BUDGET_KEYS = {"rounds", "local_epochs", "local_steps", "batch_size"}
"""Keys of an entry that change its budget; a remark tells that the budget is compared too."""

DECIDES_BITS = ("arithmetic", "torch", "numpy", "mkl", "onednn")
"""Columns of runs that decide bits, where arithmetic is portable."""

VARIANTS = "compared.csv"
"""File of the results folder with the variants that were scored, a row each, `VARIANT_COLUMNS`."""

VARIANT_COLUMNS = ["track", "method", "run"]
"""Columns of `VARIANTS`. run: the run of the first scored draw, whose name tells variants apart."""


class Place(NamedTuple):
    """Where a method is compared, and beside what.

    Attributes:
        folder: Config folder of the user.
        variants: The file `VARIANTS`.
        families: Number of the families of all tracks that have kept results.
        progress: Whether to show a progress bar.
    """

    folder: Path
    variants: Path
    families: int
    progress: bool


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of `fl.compare`; printed, it is a text, and in a notebook a table.

    Attributes:
        method: Name of the method.
        tracks: The tracks, each with the verdicts on the method and on all kept entries.
        remarks: Remarks, such as the point that was chosen, or a failed check.
    """

    method: str
    tracks: tuple[TrackClaims, ...]
    remarks: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """The comparisons in which the method takes part, `fl.report.track_verdicts.verdicts`."""
        tables = [track.verdicts.assign(track=track.name) for track in self._own_tracks()]
        return pd.concat(tables, ignore_index=True)

    def __repr__(self) -> str:
        lines = [
            line
            for own, track in zip(self._own_tracks(), self.tracks, strict=True)
            for line in _lines(track, own.verdicts)
        ]
        return "\n".join([*lines, *self.remarks])

    def _repr_html_(self) -> str:
        table = page.table_html(track_page.long_table(self._own_tracks()))
        return table + "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks)

    def tables(self, others: bool = False) -> list[Table]:
        """Return the comparisons of the method as a table.

        Args:
            others: Whether to return a table of each of its families instead, with all kept
                entries: their differences from the baseline, and verdicts, on all tracks.
        """
        if not others:
            return [track_page.long_table(self._own_tracks())]
        families = {*self.table["family"]}
        return [t for t in track_page.overview_tables(self.tracks) if t.name in families]

    @short_traceback
    def to_latex(self, others: bool = False) -> str:
        """Return `tables` in LaTeX, with remarks as comments."""
        head = f"% needs {latex.PREAMBLE}\n{latex.FITTED}\n{latex.UNICODE}\n"
        remarks = "".join(f"% {remark}\n" for remark in self.remarks)
        tables = [latex.to_latex(table, table.name) for table in self.tables(others)]
        return head + remarks + "\n".join(tables)

    def picture(self) -> Picture:
        """Return a figure of all entries on all tracks; its ``files()`` are an SVG and a PDF."""
        return track_figures.overview(self.tracks)

    def _own_tracks(self) -> list[TrackClaims]:
        """Return the tracks with the verdicts on the method alone."""
        tables = [track.verdicts for track in self.tracks]
        own = [t[(t["entry"] == self.method) | (t["other"] == self.method)] for t in tables]
        pairs = zip(self.tracks, own, strict=True)
        return [replace(track, verdicts=table) for track, table in pairs]


def _lines(track: TrackClaims, own: pd.DataFrame) -> Iterable[str]:
    """Yield a line for each comparison of a method on a track."""
    for row in own.to_dict("records"):
        head = f"{track.name}, {row['family']}: {track.title_of(row['entry'])}"
        verdict = track_page.verdict_text(track, row)
        if pd.isna(row["difference"]):
            yield f"{head}: {verdict}"
            continue
        family = track.verdicts[track.verdicts["family"] == row["family"]]["difference"]
        place = int((family > row["difference"]).sum()) + 1
        value = number(track.value_of(row["entry"], row["clients"]), track.file.metric)
        value += " %" if track.file.metric in SHARES else f" {track.file.metric.upper()}"
        gain, low, high = (track.shown(row[key]) for key in ("difference", "low", "high"))
        same = ", as all values are equal" if row["better"] == row["worse"] == 0 else ""
        yield (
            f"{head} has {value}; {gain} ({low} to {high}) {track.unit_text} from "
            f"{track.title_of(row['other'])} over {row['n']:.0f} clients, "
            f"p {probability(row['p'])}: {verdict}{same}; place {place} of {family.count()} in its "
            "family"
        )


@short_traceback
def compare(
    method: str | type,
    *,
    only: str | Sequence[str] | None = None,
    no_op: Values | None = None,
    config: str | Path | None = None,
    progress: bool = True,
    **keys: Any,
) -> Comparison:
    """Train a method on the tracks, and set it beside all entries whose results are kept.

    Its point is chosen on the tuning clients of a track, and it is trained on the scored clients,
    as the entries of the track were. It is tested in the family of its kind, shared models or
    personal ones, and of newcomers, if it has a shared model alone or clients learn nothing from
    each other. The baselines of its families are trained again, to check that they have their kept
    values. Runs are those of `fl.run`: existing runs are not trained again.

    Args:
        method: Name of a method, a class as in `fl.run`, or the name of an entry of the tracks.
        only: Name of a track, or names; by default all that have kept results.
        no_op: Values of keys at which the method does nothing of its own, and under ``is`` the
            entry that it then is: ``{"mu": 0, "is": "fedavg"}``. A grid needs them: where tuning
            chooses them, nothing is tested.
        config: Config folder, by default ``config`` in the working directory. If its tracks have no
            kept results, those of the package are used.
        progress: Whether to show a progress bar.
        keys: Hyper-parameters and training keys of the entry. A list is a grid, which is extended
            at an edge. Without ``lr``, the grid has the rates of the track.

    Raises:
        FedloomError: If there are no kept results, for keys that would change a track's clients,
            and as `fl.run`.
    """
    folder = Path(config or FOLDER)
    source = kept_tracks.source(folder)
    names = kept_tracks.names(source)
    chosen = [only] if isinstance(only, str) else names if only is None else list(only)
    if not chosen:
        raise ConfigError(CALL / "only", "is empty", ", ".join(names))
    for track in chosen:
        if track not in names:
            raise unknown_name(CALL / "only", "track with kept results", track, names)
    # Plugins of the settings may have the method.
    _, settings = settings_of(folder if (folder / "config.yaml").exists() else None)
    all_files = [track_file.read(source, name) for name in names]
    families = track_claims.count_families(all_files)
    place = Place(folder, Path(settings.results) / VARIANTS, families, progress)
    files = [file for file in all_files if file.name in chosen]
    name = method if isinstance(method, str) else entry_name(method)
    method_names = {*registry.names("method"), *(entry for file in files for entry in file.methods)}
    if isinstance(method, str) and name not in method_names:
        location = Location("the method to compare")
        raise unknown_name(location, "method", name, method_names, "fedloom methods")
    remarks = _key_remarks(name, keys)
    tracks: list[TrackClaims] = []
    for file in files:
        if isinstance(method, str) and name not in {*registry.names("method"), *file.methods}:
            remarks.append(f"{file.name}: is left out, as it has no entry {name}")
            continue
        joined = _joined(file, name, method, keys, no_op)
        if reason := _unfit(joined, name):
            remarks.append(f"{file.name}: is left out, as {name} {reason}")
            continue
        published = kept_tracks.read(kept_tracks.folder_of(source, file.name))
        claims_of, track_remarks = _compared(file, joined, name, published, place)
        if name in file.methods and (keys or not isinstance(method, str)):
            remarks.append(f"{file.name}: it stands in place of the kept {name}")
        tracks.append(claims_of)
        remarks += track_remarks
    if not tracks:
        raise DataError("; ".join(remarks))
    return Comparison(name, tuple(tracks), tuple(remarks))


def _joined(
    file: Track, name: str, method: str | type, keys: Values, no_op: Values | None
) -> Track:
    """Return a track with an entry, which is in the families of its kind if it is new.

    Raises:
        ConfigError: For what is wrong with its keys, or with its no-op.
    """
    own = {} if isinstance(method, str) else {"method": method}
    entry = {**(own or file.methods.get(name) or {}), **keys}
    joined = replace(file, methods={**file.methods, name: entry})
    track_file.check_entry(joined, name, CALL)
    if own or keys:  # With other keys it may be another entry at its no-op.
        no_ops = {other: values for other, values in file.no_ops.items() if other != name}
        joined = replace(joined, no_ops=no_ops)
    if no_op is not None:
        joined = replace(joined, no_ops={**joined.no_ops, name: dict(no_op)})
        track_file.check_no_op(joined, name, CALL / "no_op")
        _check_same_training(file, str(no_op[track_file.IS]), keys.keys() - no_op.keys(), keys)
    if name in file.methods:
        return joined
    families = {
        key: replace(family, entries=[*family.entries, *([name] * _fits(joined, family, name))])
        for key, family in file.families.items()
    }
    return replace(joined, families=families)


def _check_same_training(file: Track, other: str, given: Iterable[str], keys: Values) -> None:
    """Raise `ConfigError` if an entry's own training makes it another one than its no-op says.

    Args:
        file: The track.
        other: The entry that it is at its no-op.
        given: Keys that it was given beside those of the no-op.
        keys: All its keys.
    """
    defaults = {key: declared.default for key, declared in fields.fields(Training).items()}
    training = {**defaults, **file.training, **file.keys(other), **file.grid(other)}
    for key in defaults.keys() & {*given}:
        known = training[key]
        first, second = (v if isinstance(v, list) else [v] for v in (keys[key], known))
        if first != second:
            problem = f"says {other}, which has {key}={known}, and not {keys[key]}"
            raise ConfigError(CALL / "no_op", problem, advice=f"leave out {key}, or no_op")


def _fits(file: Track, family: Family, name: str) -> bool:
    """Whether a new entry is of the kind of a family."""
    if family.clients == NEWCOMERS:
        return file.serves_clients(name, NEWCOMERS)
    own, baseline = (declaration_of(file.target(entry)) for entry in (name, family.baseline))
    return (own.stages == (GLOBAL,)) == (baseline.stages == (GLOBAL,))


def _unfit(file: Track, name: str) -> str:
    """Return why an entry cannot be compared on a track; empty if it can."""
    task = "regression" if file.metric == "rmse" else "classification"
    if not serves(file.target(name), task):
        return f"is not for {task}"
    return "" if name in file.entries() else "is of the kind of no family"


def _compared(
    file: Track, joined: Track, name: str, published: TrackResults, place: Place
) -> tuple[TrackClaims, list[str]]:
    """Train an entry and its baselines on a track.

    Args:
        file: The track.
        joined: The track with the entry.
        name: Name of the entry.
        published: The kept results of the track.
        place: Where, and beside what.

    Returns:
        The claims on the track, and remarks.
    """
    retrained = _train_baselines(file, joined, name, published, place)
    training = TrackTraining(joined, place.folder, progress=place.progress)
    tuned = training.tune([name])
    scored = training.score(tuned, [name])
    is_kept = name in {*published.runs["entry"]} and joined.methods[name] == file.keys(name)
    if not is_kept:
        published = _without_no_ops(published, name)
    results = kept_tracks.with_entries(published, scored)
    claims_of = track_claims.of_track(joined, results, families=place.families)
    title = claims_of.title_of(name)
    remarks = [
        *_tuning_remarks(joined, name, title, tuned),
        *_run_remarks(file.name, title, scored),
        *_verdict_remarks(file, joined, name, published, claims_of),
    ]
    if is_kept:
        remarks.append(_check_remark(claims_of, name, published, scored))
    else:
        run = str(scored.runs["run"].iloc[0])
        remarks += _variant_remarks(place.variants, file.name, name, run)
    if retrained is not None:
        remarks += _baseline_remarks(claims_of, joined, name, results, retrained)
    return claims_of, remarks


def _train_baselines(
    file: Track, joined: Track, name: str, published: TrackResults, place: Place
) -> TrackResults | None:
    """Train the kept baselines of an entry's families again; None if there are none.

    Args:
        file: The track.
        joined: The track with the entry.
        name: Name of the entry.
        published: The kept results of the track.
        place: Where, and beside what.

    Raises:
        DataError: If the kept results are of other clients.
    """
    families = [family for family in joined.families.values() if name in family.entries]
    kept = {*published.runs["entry"]}
    baselines = [b for b in dict.fromkeys(f.baseline for f in families) if b in kept]
    if not baselines:
        return None
    choice = kept_choice(file, published, baselines)
    retrained = TrackTraining(file, place.folder, progress=place.progress).score(choice, baselines)
    kept_tracks.check_clients(file.name, published, retrained)
    return retrained


def _without_no_ops(published: TrackResults, name: str) -> TrackResults:
    """Return kept results in which no entry is said to be one that is trained anew."""
    no_op = published.runs["no_op"]
    return replace(published, runs=published.runs.assign(no_op=no_op.mask(no_op == name, "")))


def _verdict_remarks(
    file: Track, joined: Track, name: str, published: TrackResults, claims_of: TrackClaims
) -> Iterable[str]:
    """Yield a remark on the kept verdicts on other entries that change in an entry's families.

    Args:
        file: The track.
        joined: The track with the entry.
        name: Name of the entry.
        published: The kept results of the track.
        claims_of: The claims with the entry.
    """
    families = {k: f for k, f in file.families.items() if name in joined.families[k].entries}
    if not families:
        return
    kept = track_verdicts.verdicts(published, replace(file, families=families))
    now = claims_of.verdicts[claims_of.verdicts["entry"] != name]
    changed = _changed(kept, now)
    if changed != claims.NO_CHANGE:
        yield f"{file.name}: with {claims_of.title_of(name)} in its families, {changed}"


def _baseline_remarks(
    claims_of: TrackClaims, joined: Track, name: str, results: TrackResults, retrained: TrackResults
) -> Iterable[str]:
    """Yield a remark on each baseline that was trained again, and on verdicts that hang on them.

    Args:
        claims_of: The claims with the entry.
        joined: The track with the entry.
        name: Name of the entry.
        results: The kept results with the entry.
        retrained: The results of the baselines.
    """
    baselines = list(dict.fromkeys(retrained.runs["entry"]))
    yield from (_check_remark(claims_of, entry, results, retrained) for entry in baselines)
    is_missing = (retrained.runs["state"] == MISSING).any()
    if is_missing or not any(_gaps(results, retrained, entry).any() for entry in baselines):
        return
    verdicts = track_verdicts.verdicts(kept_tracks.with_entries(results, retrained), joined)
    own = claims_of.verdicts[claims_of.verdicts["entry"] == name]
    yield f"{claims_of.name}: with the baselines trained here, {_changed(own, verdicts)}"


def _changed(first: pd.DataFrame, second: pd.DataFrame) -> str:
    """Return which verdicts of a first table are others in a second one."""
    old, new = (table.rename(columns={"entry": "method"}) for table in (first, second))
    return claims.changed_verdicts(old, new, ["family"])


def _key_remarks(name: str, keys: Values) -> list[str]:
    """Return remarks on the keys that a method was given."""
    remarks: list[str] = []
    if keys:
        texts = ", ".join(f"{key}={value}" for key, value in keys.items())
        remarks.append(f"{name} was given {texts}")
    if budget := sorted(BUDGET_KEYS & keys.keys()):
        remarks.append(
            f"{name} has its own {', '.join(budget)}; the other entries have the track's budget, "
            "so the comparison is of methods and budgets"
        )
    return remarks


def _tuning_remarks(file: Track, name: str, title: str, tuned: Tuned) -> Iterable[str]:
    """Yield a remark on the point that was chosen for each role of clients."""
    for role in file.roles(name):
        trial, edges = tuned.chosen[name, role], ", ".join(tuned.at_edge[name, role])
        point, start = track_file.point_text(trial.point), track_file.point_text(trial.start)
        tried = tuned.tried[(tuned.tried["entry"] == name) & (tuned.tried["start"] == start)]
        count = quantity(len(tried) // len(file.draws.tuning), "point")
        if failed := int((tried["state"] == MISSING).sum()):
            yield f"{file.name}, {role}: {quantity(failed, 'run')} of tuning {title} failed"
        if tried.loc[kept_tracks.is_chosen(tried, role), role].isna().any():
            yield f"{file.name}, {role}: no point of {title} is trained in all draws of tuning"
        elif point:
            remark = f"{file.name}, {role}: {title} has {point}, the best of {count} on tuning "
            yield f"{remark}clients{f', at an edge of the grid: {edges}' if edges else ''}"


def _run_remarks(track: str, title: str, scored: TrackResults) -> Iterable[str]:
    """Yield remarks on runs that diverged or failed."""
    ends = {
        DIVERGED: "diverged: its clients have the values of the floor",
        MISSING: "failed, so that there is no verdict",
    }
    states = scored.runs["state"]
    for state, end in ends.items():
        if count := int((states == state).sum()):
            yield f"{track}: {count} of {quantity(len(states), 'run')} of {title} {end}"


def _variant_remarks(path: Path, track: str, name: str, run: str) -> Iterable[str]:
    """Keep that a variant was scored on a track; yield a remark if it is not the first one.

    Whoever reports the best of several lets the scored clients choose it.

    Args:
        path: The file `VARIANTS`.
        track: Name of the track.
        name: Name of the method.
        run: Its run of the first scored draw.

    Raises:
        DataError: If the file cannot be read.
    """
    known = pd.DataFrame(columns=VARIANT_COLUMNS)
    if path.exists():
        try:
            known = pd.read_csv(path, dtype=str)[VARIANT_COLUMNS]
        except (ValueError, KeyError) as error:
            advice = "delete it; variants are then counted anew"
            raise DataError(f"{path}: cannot be read: {error}", advice=advice) from error
    new = pd.DataFrame([[track, name, run]], columns=VARIANT_COLUMNS)
    variants = pd.concat([known, new]).drop_duplicates(["track", "run"])
    write_bytes(path, variants.to_csv(index=False, lineterminator="\n").encode())
    count = int((variants["track"] == track).sum())
    if count > 1:
        yield (
            f"{track}: {count} variants have been scored on its clients ({path}), and the "
            f"correction knows of one: whoever reports the best multiplies its p by {count}"
        )


def _gaps(published: TrackResults, retrained: TrackResults, entry: str) -> pd.Series:
    """Return by how much values of an entry differ from the kept ones, by client and draw.

    It is infinite where only one of both has a value.
    """
    key = ["clients", "draw", "client"]
    first, second = (
        results.values[(results.values["budget"] == 1) & (results.values["entry"] == entry)]
        .set_index(key)["value"]
        .astype("float64")
        for results in (published, retrained)
    )
    gaps: pd.Series = first.sub(second).abs().fillna(float("inf"))
    return gaps


def _check_remark(
    claims_of: TrackClaims, entry: str, published: TrackResults, retrained: TrackResults
) -> str:
    """Return a remark on whether an entry that was trained again has its kept values."""
    gaps, title = _gaps(published, retrained, entry), claims_of.title_of(entry)
    if (retrained.runs.loc[retrained.runs["entry"] == entry, "state"] == MISSING).any():
        return f"{claims_of.name}: {title} failed here, so that its kept values are not checked"
    if not gaps.any():
        return f"{claims_of.name}: {title} has its kept values, of every client in every draw"
    remark = f"{claims_of.name}: {int((gaps > 0).sum())} of {len(gaps)} values of {title} differ "
    remark += f"from the kept ones, by up to {gaps.max():.2g}"
    first, second = (
        results.runs[(results.runs["entry"] == entry) & (results.runs["budget"] == 1)]
        for results in (published, retrained)
    )
    numbers = ["; ".join(sorted({*map(str, runs["numbers"])})) for runs in (first, second)]
    environments = [_environment(runs) for runs in (first, second)]
    if numbers[0] != numbers[1]:
        return f"{remark}; kept numbers are of {numbers[0]}, these of {numbers[1]}"
    if environments[0] == environments[1] and environments[0].startswith(f"arithmetic {PORTABLE}"):
        return f"{remark}, although {EXACT}: this is a fault, please report it"
    return (
        f"{remark}, as they may by rounding: kept values are of {environments[0]}, these of "
        f"{environments[1]}"
    )


def _environment(runs: pd.DataFrame) -> str:
    """Return what computed runs, ``arithmetic portable, torch 2.11.0``."""
    texts = {
        ", ".join(f"{key} {row[key]}" for key in DECIDES_BITS if isinstance(row[key], str))
        for row in runs.to_dict("records")
    }
    return "; ".join(sorted(texts))
