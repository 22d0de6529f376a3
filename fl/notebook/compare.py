"""Comparison of a method with the entries of the tracks whose results are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fl.api.task import serves
from fl.api.training import Training
from fl.base import fields, registry
from fl.base.declaration import declaration_of
from fl.base.errors import ConfigError, DataError, Location, unknown_name
from fl.base.schema import GLOBAL
from fl.notebook import compare_remarks
from fl.notebook.comparison import Comparison
from fl.notebook.display import short_traceback
from fl.notebook.keys import entry_name
from fl.notebook.run import FOLDER, settings_of
from fl.notebook.track_training import TrackTraining, kept_choice
from fl.plan import track as track_file
from fl.plan.config import Values
from fl.plan.track import NEWCOMERS, Family, Track
from fl.report import kept_tracks, track_claims
from fl.report.kept_tracks import TrackResults
from fl.report.track_claims import TrackClaims

CALL = Location("fl.compare")


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
    variants = Path(settings.results) / compare_remarks.VARIANTS
    files = [file for file in all_files if file.name in chosen]
    name = method if isinstance(method, str) else entry_name(method)
    method_names = {*registry.names("method"), *(entry for file in files for entry in file.methods)}
    if isinstance(method, str) and name not in method_names:
        location = Location("the method to compare")
        raise unknown_name(location, "method", name, method_names, "fedloom methods")
    remarks = compare_remarks.on_keys(name, keys)
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
        training = TrackTraining(joined, folder, progress=progress)
        claims_of, track_remarks = _compared(file, training, name, published, families, variants)
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
        _check_same_training(file, no_op, keys)
    if name in file.methods:
        return joined
    families = {
        key: replace(family, entries=[*family.entries, *([name] * _fits(joined, family, name))])
        for key, family in file.families.items()
    }
    return replace(joined, families=families)


def _check_same_training(file: Track, no_op: Values, keys: Values) -> None:
    """Raise `ConfigError` if an entry's own training makes it another one than its no-op says.

    Args:
        file: The track.
        no_op: The no-op.
        keys: Keys that the entry was given.
    """
    equal_entry = str(no_op[track_file.IS])
    defaults = {key: declared.default for key, declared in fields.fields(Training).items()}
    training = {**defaults, **file.training, **file.keys(equal_entry), **file.grid(equal_entry)}
    for key in sorted(defaults.keys() & (keys.keys() - no_op.keys())):
        values = training[key]
        lists = [v if isinstance(v, list) else [v] for v in (keys[key], values)]
        if lists[0] != lists[1]:
            problem = f"says {equal_entry}, which has {key}={values}, and not {keys[key]}"
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
    file: Track,
    training: TrackTraining,
    name: str,
    published: TrackResults,
    families: int,
    variants: Path,
) -> tuple[TrackClaims, list[str]]:
    """Train an entry and its baselines on a track.

    Args:
        file: The track.
        training: Training of the track with the entry.
        name: Name of the entry.
        published: The kept results of the track.
        families: Number of the families of all tracks.
        variants: The file `fl.notebook.compare_remarks.VARIANTS`.

    Returns:
        The claims on the track, and remarks.
    """
    joined, tuned = training.track, training.tune([name])
    # Whether the kept results are of the same clients is told before scoring.
    retrained = _train_baselines(file, training, name, published)
    scored = training.score(tuned, [name])
    is_kept = name in {*published.runs["entry"]} and joined.methods[name] == file.keys(name)
    others = published if is_kept else _without_no_ops(published, name)
    results = kept_tracks.with_entries(others, scored, are_same=is_kept)
    claims_of = track_claims.of_track(joined, results, families=families)
    title = claims_of.title_of(name)
    remarks = [
        *compare_remarks.on_tuning(joined, name, title, tuned),
        *compare_remarks.on_runs(file.name, title, scored),
        *compare_remarks.on_verdicts(file, joined, name, published, claims_of),
    ]
    if is_kept:
        remarks.append(compare_remarks.on_kept_values(claims_of, name, published, scored))
    else:
        run = str(scored.runs["run"].iloc[0])
        remarks += compare_remarks.on_variants(variants, file.name, name, run)
    if retrained is not None:
        remarks += compare_remarks.on_baselines(claims_of, joined, name, results, retrained)
    return claims_of, remarks


def _train_baselines(
    file: Track, training: TrackTraining, name: str, published: TrackResults
) -> TrackResults | None:
    """Train the kept baselines of an entry's families again; None if there are none.

    Args:
        file: The track.
        training: Training of the track with the entry.
        name: Name of the entry.
        published: The kept results of the track.

    Raises:
        DataError: If the kept results are of other clients.
    """
    families = [f for f in training.track.families.values() if name in f.entries]
    names = {*published.runs["entry"]}
    baselines = [b for b in dict.fromkeys(f.baseline for f in families) if b in names]
    if not baselines:
        return None
    choice = kept_choice(file, published, baselines)
    retrained = replace(training, track=file).score(choice, baselines)
    kept_tracks.check_clients(file.name, published, retrained)
    return retrained


def _without_no_ops(published: TrackResults, name: str) -> TrackResults:
    """Return kept results in which no entry is said to be one that is trained anew."""
    no_op = published.runs["no_op"]
    return replace(published, runs=published.runs.assign(no_op=no_op.mask(no_op == name, "")))
