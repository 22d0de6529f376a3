"""Commands ``fedloom store COMMAND``: list, check and clean stored runs, or move them."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from fl.base import files, registry
from fl.base.errors import FedloomError, Location, unknown_name
from fl.base.units import quantity, size
from fl.cli import transfer
from fl.cli.commands import add_config_option, say
from fl.cli.run_table import StoredRun, stored_runs, table
from fl.cli.stores import (
    planned_runs,
    require_stored,
    results_of,
    runs_of_studies,
    store_of,
)
from fl.plan import certification, config
from fl.store import run_check
from fl.store.run_record import run_of
from fl.store.store import Store

DAY = 86400.0


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the commands of the command ``name``, and their options."""
    parsers = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace], Any], help: str
    ) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = parsers.add_parser(name, help=help, description=help)
        sub.set_defaults(run=run)
        add_config_option(sub)
        sub.add_argument("--store", type=Path, help="folder of runs (default: the config's)")
        return sub

    sub = command("ls", _ls, "list stored runs with their main settings")
    sub.add_argument("studies", nargs="*", help="only runs of these studies")
    sub.add_argument("--method", help="only runs of this method")
    sub.add_argument("--json", action="store_true", help="print complete records as JSON")

    sub = command("verify", _verify, "compare every file of finished runs with its hash")
    sub.add_argument("runs", nargs="*", type=run_of, help="only these runs")
    sub.add_argument(
        "--remove", action="store_true", help="remove damaged runs, so that they are trained again"
    )

    sub = command("gc", _gc, "list runs that no study in config/studies needs")
    sub.add_argument(
        "runs", nargs="*", type=run_of, help="only these runs, whatever code made them"
    )
    sub.add_argument("--yes", action="store_true", help="remove these runs")
    sub.add_argument(
        "--other-code", action="store_true", help="also runs that other code than today's made"
    )

    transfer.add(command)


def _leftovers(data: Path) -> list[Path]:
    """Return unfinished folders of prepared data that have not changed for a day."""
    with files.disk_errors(data):
        partial = sorted((data / "prepared").glob(".*.partial"))
        return [path for path in partial if time.time() - _last_change(path) > DAY]


def _last_change(folder: Path) -> float:
    """Return the time of the last change in a folder, in seconds; now if it is being removed."""
    with contextlib.suppress(FileNotFoundError):
        return max(path.stat().st_mtime for path in (folder, *folder.rglob("*")))
    return time.time()


def _ls(parsed: argparse.Namespace) -> None:
    selected = runs_of_studies(parsed.config, parsed.studies) if parsed.studies else None
    all_runs = [
        (stored, stored.record.get("spec", {}).get("method", {}).get("name"))
        for stored in stored_runs(store_of(parsed))
    ]
    methods = {name for _, name in all_runs if isinstance(name, str)} | {*registry.names("method")}
    if parsed.method not in (None, *methods):
        raise unknown_name(Location("--method"), "method", parsed.method, methods)
    runs = [
        stored
        for stored, name in all_runs
        if (selected is None or stored.run in selected) and parsed.method in (None, name)
    ]
    if parsed.json:
        # JSON escapes all control characters but one.
        text = json.dumps([_json_record(stored) for stored in runs], indent=2)
        print(text.replace("\x7f", "\\u007f"))
        return
    for line in table(runs):
        say(line)
    say(f"{quantity(len(runs), 'run')}, {_total_size(runs)}")
    uncertified = Counter(
        stored.record.get("versions", {}).get("fedloom", "an unknown version")
        for stored in runs
        if stored.record and certification.was_never_certified(stored.record)
    )
    if uncertified:
        states = ", ".join(f"{count} of {state}" for state, count in sorted(uncertified.items()))
        count = quantity(sum(uncertified.values()), "run")
        say(f"{count} of code that was never certified, found by that code alone: {states}")


def _json_record(stored: StoredRun) -> dict[str, Any]:
    return {"run": stored.run, "state": stored.state, "size": stored.size, **stored.record}


def _verify(parsed: argparse.Namespace) -> int:
    store = store_of(parsed)
    require_stored(store, parsed.runs)
    checked = parsed.runs or store.runs()
    logging.info("checking every file of %s", quantity(len(checked), "run"))
    find_problems = partial(run_check.find_problems, store, results=results_of(parsed.config))
    damaged = {run: problems for run in checked if (problems := find_problems(run))}
    for problems in damaged.values():
        for line in problems:
            say(line)
    data_changes = list(_data_changes(parsed.config, store, {*checked} - {*damaged}))
    for line in data_changes:
        say(line)
    say(f"{quantity(len(checked), 'run')} checked, {len(damaged)} damaged")
    if not parsed.remove:
        if damaged:
            say("--remove removes these runs; the next snakemake trains them again")
        return int(bool(damaged or data_changes))
    was_refused = _remove(store, damaged, find_problems)
    return int(was_refused or bool(data_changes))


def _data_changes(folder: Path, store: Store, runs: Iterable[str]) -> Iterator[str]:
    """Return a line for each run whose training data differ from the data of the config."""
    if not (folder / "config.yaml").exists():
        return
    from fl.data import partitioning  # It imports pandas, which takes a second.

    settings = config.read_settings(folder)
    for run in sorted(runs):
        record = store.record(run)
        if problem := partitioning.find_data_change(
            record, Path(settings.data), Path(settings.results)
        ):
            yield f"{store.folder(run)}: {problem}"


def _gc(parsed: argparse.Namespace) -> int:
    from fl.cli import studies

    store, settings = store_of(parsed), config.read_settings(parsed.config)
    all_runs = list(stored_runs(store))
    # Runs of the written plan stay too: a pipeline may train them while the config is edited.
    planned = planned_runs(parsed.config)
    candidates = {stored.run for stored in all_runs} - planned
    # Those of config.yaml come first: with luck they need all runs, and no other is planned.
    names = list(dict.fromkeys([*settings.studies, *studies.all_studies(parsed.config)]))
    logging.info("planning up to %d studies in %s", len(names), parsed.config / "studies")
    required = studies.find_required_runs(parsed.config, names, parsed.yes, candidates)
    if required.remarks:
        raise FedloomError(
            f"{'; '.join(required.remarks)}; nothing was removed, because this study may need runs",
            advice="correct or remove the study",
        )
    needed = {*required.runs} | planned
    surplus = [stored for stored in all_runs if stored.run not in needed]
    surplus, spared = _chosen(surplus, parsed.runs, parsed.other_code)
    unfinished = _leftovers(Path(settings.data))
    if surplus:
        for line in table(surplus):
            say(line)
    for path in unfinished:
        say(f"{path}: unfinished file of a stopped process")
    unused = f"that no study in {parsed.config / 'studies'} needs"
    say(f"{quantity(len(surplus), 'run')} {unused}, {_total_size(surplus)}")
    if spared:
        runs = f"{quantity(len(spared), 'more run')} of earlier, later or edited code"
        say(f"{runs}, {_total_size(spared)}: kept, unless you name them or say --other-code")
    if not parsed.yes:
        say("nothing was removed; --yes removes them")
        return 0
    was_refused = _remove(store, [stored.run for stored in surplus])
    for path in unfinished:
        files.erase(path)
    return int(was_refused)


def _chosen(
    surplus: list[StoredRun], runs: list[str], with_other_code: bool
) -> tuple[list[StoredRun], list[StoredRun]]:
    """Return the runs to remove, and those that stay because other code than today's made them.

    Raises:
        FedloomError: If ``runs`` has a run that is not surplus.
    """
    if runs:
        if needed_runs := sorted({*runs} - {stored.run for stored in surplus}):
            raise FedloomError(
                f"{needed_runs[0]}: is not stored, or a study needs it",
                advice="list the runs that can be removed with `fedloom store gc --other-code`",
            )
        return [stored for stored in surplus if stored.run in runs], []
    if with_other_code:
        return surplus, []
    from fl.plan.run_spec import is_of_other_code

    spared = [stored for stored in surplus if is_of_other_code(stored.record)]
    names = {stored.run for stored in spared}
    return [stored for stored in surplus if stored.run not in names], spared


def _total_size(runs: Iterable[StoredRun]) -> str:
    return size(sum(stored.size for stored in runs))


def _remove(
    store: Store, runs: Iterable[str], condition: Callable[[str], object] = lambda run: True
) -> bool:
    """Remove runs; return whether one stayed, because a process is training it or it is intact."""
    was_refused, removed = False, 0
    for run in runs:
        try:
            store.remove(run, partial(condition, run))
            removed += 1
        except FedloomError as error:
            was_refused = True
            say(f"not removed: {error}")
    say(f"{quantity(removed, 'run')} removed")
    return was_refused
