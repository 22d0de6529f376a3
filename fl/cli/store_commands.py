"""``python -m fl store COMMAND``: list, check, clean, export and import stored runs."""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from fl.base import fields, files, registry
from fl.base.errors import FedloomError, Location
from fl.base.units import config_text, quantity, size
from fl.cli.printing import aligned, plain, say
from fl.data import materials
from fl.plan import config
from fl.store import import_export, maintenance
from fl.store.import_export import BUSY, CONFLICT, NEW, THERE, Moved
from fl.store.maintenance import DAMAGED, StoredRun
from fl.store.store import Store


def add(commands: Any) -> None:
    """Add ``store`` and its commands to a parser's commands."""
    help = "the store of runs: list, verify, clear up, export, import"
    groups = commands.add_parser("store", help=help, description=help)
    commands = groups.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, help: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = commands.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        sub.add_argument("--config", type=Path, default=Path("config"), help="config folder")
        sub.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
        return sub

    sub = command("ls", _ls, "the runs that are there, with their specs")
    sub.add_argument("studies", nargs="*", help="only runs of these studies")
    sub.add_argument("--method", help="only runs of this method")
    sub.add_argument("--json", action="store_true", help="whole records, as JSON")

    sub = command("verify", _verify, "check every file of finished runs against its hash")
    sub.add_argument("runs", nargs="*", help="only these runs")
    sub.add_argument("--remove", action="store_true", help="remove damaged runs: train them again")

    sub = command("gc", _gc, "runs that no study in config/studies needs; shows them")
    sub.add_argument("--yes", action="store_true", help="and removes them")

    for name, run, help in (
        ("export", _export, "copy finished runs to another store, or to a new tar file"),
        ("import", _import, "copy finished runs from another store or a tar file"),
    ):
        sub = command(name, run, help)
        sub.add_argument("place", type=Path, help="a folder, or a file named *.tar")
        sub.add_argument("studies", nargs="*", help="only runs of these studies")
        sub.add_argument("--planned", action="store_true", help="the runs that Snakemake planned")


def _place(parsed: argparse.Namespace) -> Store:
    return readable(parsed.store or config.read_settings(parsed.config).store)


def readable(place: str | Path) -> Store:
    """The store of runs in a folder; runs in it that may not be read are named, and passed over.

    Raises:
        FedloomError: For a folder that may not be read itself.
    """
    store = Store(Path(place))
    if not store.root.is_dir():
        return store
    if not os.access(store.root, os.R_OK | os.X_OK):
        raise FedloomError(f"{place}: permission denied. Allowed: a store that you may read")
    for run in sorted(store.root.iterdir()):
        if run.is_dir() and not os.access(run, os.R_OK | os.X_OK):
            say(f"{run}: permission denied; passed over", file=sys.stderr)
    return store


def _ls(parsed: argparse.Namespace) -> None:
    wanted = _runs_of(parsed.config, parsed.studies) if parsed.studies else None
    runs = [
        entry
        for entry in maintenance.entries(_place(parsed))
        if (wanted is None or entry.run in wanted)
        and parsed.method in (None, entry.record.get("spec", {}).get("method", {}).get("name"))
    ]
    if parsed.json:
        # JSON writes all but one of a terminal's characters as numbers by itself.
        said = json.dumps([_described(entry) for entry in runs], indent=2)
        print(said.replace("\x7f", "\\u007f"))
        return
    for line in _table(runs):
        say(line)
    say(f"{len(runs)} runs, {_sum(runs)}")


def _described(entry: StoredRun) -> dict[str, Any]:
    return {"run": entry.run, "state": entry.state, "size": entry.size, **entry.record}


def _table(runs: Iterable[StoredRun]) -> Iterator[str]:
    """Lines with columns as wide as their widest cell, in a terminal no wider than that."""
    head = ("run", "state", "seed", "rounds", "lr", "size", "date", "version", "method", "place")
    cells = [head, *(tuple(map(plain, _row(entry))) for entry in runs)]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    for line in aligned(cells):
        yield line if len(line) <= most else f"{line[: most - 1]}…"


def _row(entry: StoredRun) -> tuple[str, ...]:
    spec = entry.record.get("spec")
    if spec is None:
        return (entry.run, entry.state, "", "", "", size(entry.size), "", "", "", "")
    split = ("seed", "val", "test")
    place = [
        _text("data set", spec["dataset"]),
        _text("partition scheme", spec["partition"], split),
    ]
    return (
        entry.run,
        entry.state,
        str(spec["seed"]),
        str(spec["training"]["rounds"]),
        str(spec["training"].get("lr", "")),
        size(entry.size),
        str(entry.record.get("date", ""))[:10],
        entry.record.get("versions", {}).get("fedloom", ""),
        " + ".join([_text("method", spec["method"]), *_added(spec)]),
        " / ".join([*place, _text("model", spec["model"])]),
    )


def _text(kind: str, choice: Mapping[str, Any], hidden: Iterable[str] = ()) -> str:
    """A choice of a spec without keys at their defaults, where its kind is known here."""
    usual = _defaults(kind, str(choice["name"]))
    same = [key for key in usual if config_text(choice.get(key)) == usual[key]]
    return maintenance.text(choice, [*hidden, *same])


@cache
def _defaults(kind: str, name: str) -> dict[str, str]:
    try:
        declared = fields.fields(registry.find_declaration(kind, name, Location(name)).target)
    except FedloomError:
        return {}
    return {key: config_text(field.default) for key, field in declared.items()}


def _added(spec: Mapping[str, Any]) -> list[str]:
    """The names of what a study added to a method."""
    return [its["name"] for _, _, its in registry.added_components(spec)]


def _verify(parsed: argparse.Namespace) -> int:
    store = _place(parsed)
    there = store.runs()
    if absent := sorted({*parsed.runs} - {*there}):
        raise FedloomError(f"{store.root}: {absent[0]!r} is no finished run of `fl store ls`")
    checked = parsed.runs or there
    logging.info("checking every file of %s", quantity(len(checked), "run"))
    damaged = {run: problems for run in checked if (problems := maintenance.problems(store, run))}
    for problems in damaged.values():
        for line in problems:
            say(line)
    other_data = list(_of_other_data(parsed.config, store, {*checked} - {*damaged}))
    for line in other_data:
        say(line)
    say(f"{quantity(len(checked), 'run')} checked, {len(damaged)} damaged")
    if not parsed.remove:
        if damaged:
            say("--remove removes them, and the next snakemake trains them again")
        return int(bool(damaged or other_data))
    kept = _remove(store, damaged, recheck=True)
    return int(kept or bool(other_data))


def _of_other_data(folder: Path, store: Store, runs: Iterable[str]) -> Iterator[str]:
    """A line for each run that was trained on other data than lie where the config says."""
    if not (folder / "config.yaml").exists():
        return
    settings = config.read_settings(folder)
    for run in sorted(runs):
        record = store.record(run)
        if problem := materials.another(record, Path(settings.data), Path(settings.results)):
            yield f"{store.place(run)}: {problem}"


def _gc(parsed: argparse.Namespace) -> int:
    from fl.plan import required_runs

    store, settings = _place(parsed), config.read_settings(parsed.config)
    # Where there are no runs it does not matter which are needed.
    there = list(maintenance.entries(store))
    studies = required_runs.all_studies(parsed.config) if there else []
    logging.info("planning all %d studies in %s", len(studies), parsed.config / "studies")
    wanted = required_runs.find(parsed.config, studies, anew=parsed.yes)
    if wanted.remarks:
        raise FedloomError(f"{'; '.join(wanted.remarks)}; nothing is removed, as it may need runs")
    # Those of the plan as it was written too: a pipeline may be at them while config is edited.
    runs = {*wanted.members} | _planned(parsed.config)
    surplus = [entry for entry in there if entry.run not in runs]
    rubbish = maintenance.leftovers(Path(settings.data))
    for line in _table(surplus) if surplus else ():
        say(line)
    for path in rubbish:
        say(f"{path}: begun and left")
    no_study = f"that no study in {parsed.config / 'studies'} needs"
    say(f"{quantity(len(surplus), 'run')} {no_study}, {_sum(surplus)}")
    if not parsed.yes:
        say("nothing was removed; --yes removes them")
        return 0
    left = _remove(store, [entry.run for entry in surplus])
    for path in rubbish:
        files.erase(path)
    return int(left)


def _sum(runs: Iterable[StoredRun]) -> str:
    return size(sum(entry.size for entry in runs))


def _remove(store: Store, runs: Iterable[str], recheck: bool = False) -> bool:
    """Remove runs that no process is computing; whether one had to be kept."""
    kept, removed = False, 0
    for run in runs:
        try:
            if recheck:
                store.remove(run, still=partial(maintenance.problems, store, run))
            else:
                store.remove(run)
            removed += 1
        except FedloomError as error:
            kept = True
            say(f"kept: {error}")
    say(f"{quantity(removed, 'run')} removed")
    return kept


def _export(parsed: argparse.Namespace) -> int:
    source = _place(parsed)
    runs = _chosen(parsed, source)
    if parsed.planned and (missing := _planned(parsed.config) - {*source.runs()}):
        lacking = quantity(len(missing), "run")
        problem = f"{source.root}: lacks {lacking} of the plan, as {min(missing)}"
        raise FedloomError(f"{problem}; train them first (snakemake)")
    if import_export.is_tar(parsed.place):
        return _tell(import_export.pack(runs, source, parsed.place))
    target = Store(parsed.place)
    return _tell(import_export.bring(run, source, target) for run in runs)


def _import(parsed: argparse.Namespace) -> int:
    target = _place(parsed)
    with import_export.opened(parsed.place) as source:
        return _tell(import_export.bring(run, source, target) for run in _chosen(parsed, source))


def _chosen(parsed: argparse.Namespace, source: Store) -> list[str]:
    """The finished runs of ``source`` that are asked for."""
    runs = source.runs()
    if parsed.planned:
        runs = sorted({*runs} & _planned(parsed.config))
    if parsed.studies:
        runs = sorted({*runs} & _runs_of(parsed.config, parsed.studies))
    return runs


def _runs_of(folder: Path, studies: list[str]) -> set[str]:
    """The runs that studies need, for the config as it is now."""
    from fl.plan import plan

    planned = plan.read_or_make(folder, studies, checked=False)
    return {*planned.members}


def _planned(folder: Path) -> set[str]:
    """The runs of the plan as it was last written; none if there is none."""
    from fl.plan import plan_files

    summary = plan_files.read_summary(Path(config.read_settings(folder).results) / "plan")
    return {*summary["runs"]} if summary else set()


def _tell(moved: Iterable[Moved]) -> int:
    """Print the outcome for each run; 1 if one is damaged or in conflict."""
    counts: Counter[str] = Counter()
    for move in moved:
        counts[move.outcome] += 1
        if move.outcome != NEW and move.outcome != THERE:
            say(f"{move.run} {move.outcome}" + (f": {move.why}" if move.why else ""))
    told = (NEW, THERE, BUSY, CONFLICT, DAMAGED)
    say(", ".join(f"{counts[o]} {o}" for o in told if counts[o]) or "no runs")
    return int(bool(counts[CONFLICT] or counts[DAMAGED]))
