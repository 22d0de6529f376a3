"""Explanation of a run: its settings, and its differences from the nearest stored run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from fl.base.dataclass_json import from_json
from fl.base.errors import FedloomError
from fl.base.files import parse_json
from fl.base.specs import ComponentSpec, Spec
from fl.cli.commands import add_config_option, add_words, say
from fl.cli.stores import add_run_argument, find_run, readable
from fl.plan import config, overrides
from fl.plan.bundle import Run
from fl.plan.certification import is_version
from fl.plan.plan_files import all_files
from fl.store.run_record import RECORD
from fl.store.store import Store

NO_WEIGHTS = (
    ", but its final weights or predictions, which are needed now, are not stored, so it is "
    "trained again"
)
MAX_DIFFERENCES = 5
"""Largest number of printed differences; for old runs all files could be listed."""


@dataclass(frozen=True)
class ComparedRun:
    """Properties of a run that are compared with those of another run.

    Attributes:
        spec: The spec of the run; under ``start``, that of the run from which it starts.
        code: Versions or hashes of its code.
        code_files: Hashes of its edited files.
        start: Id of the run from which it starts.
        state: State of a stored run.
    """

    spec: Spec
    code: Mapping[str, str]
    code_files: Mapping[str, str] = field(default_factory=dict)
    start: str | None = None
    state: str = ""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    add_run_argument(parser)
    add_words(parser, "studies that plan the run (default: those in config.yaml)")
    parser.set_defaults(run=_explain)


def _explain(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    store, remarks = readable(settings.store), list[str]()
    planned = find_planned_members(settings.results, parsed.run_prefix)
    if not any(run.startswith(parsed.run_prefix) for run in {*planned, *store.runs()}):
        from fl.cli import studies

        names = overrides.resolve(parsed.config, parsed.words) or settings.studies
        required = studies.find_required_runs(parsed.config, names)
        planned = required.runs
        remarks = required.remarks
    for line in explain(parsed.run_prefix, planned, store, remarks):
        say(line)


def explain(
    prefix: str, planned: Mapping[str, Run], store: Store, plan_errors: Sequence[str] = ()
) -> Iterator[str]:
    """Return lines about the run whose id begins with ``prefix``.

    The first line has the differences from the nearest run in the store: versions, edits, keys.

    Args:
        prefix: The first characters of a run id.
        planned: Members of plans' bundles, by run id.
        store: The store of runs.
        plan_errors: A line for each study that could not be planned.

    Raises:
        FedloomError: If no run matches, or several do.
    """
    stored = store.runs()
    run = find_run(
        prefix,
        {*stored, *planned},
        f"{len(stored)} stored and {len(planned)} planned runs",
        "list runs with `fedloom plan --runs`; for a run that is not stored, add its study: "
        "fedloom explain RUN STUDY",
        plan_errors,
    )
    records = dict(_records(store, stored))
    description = _describe_run(run, planned, records)
    differences = {
        candidate: _differences(description, _describe_run(candidate, planned, records))
        for candidate in records
        if candidate != run
    }
    nearest = min(differences, key=lambda name: len(differences[name]), default=None)
    if nearest is None:
        yield f"{store.root} has no other run"
    else:
        yield (
            "; ".join(_first_lines(differences[nearest]))
            or "equal in everything to the nearest run"
        )
    keep = planned[run].keep if run in planned else ()
    lacks_weights = run in stored and not store.has(run, keep)
    state = records[run].state if run in records else "not trained"
    comparison = f"; the nearest run in {store.root} is {nearest}" if nearest else ""
    yield f"run {run}: {state}{NO_WEIGHTS if lacks_weights else ''}{comparison}"
    yield from _spec_lines(description.spec)


def find_planned_members(results: str, prefix: str) -> dict[str, Run]:
    """Return members of the bundles of a written plan whose files contain ``prefix``, by run id."""
    members: dict[str, Run] = {}
    for path in all_files(results, "bundles"):
        content = path.read_bytes()
        if prefix.encode() in content:
            planned = (from_json(Run, member) for member in parse_json(content)["runs"])
            members |= {member.run: member for member in planned}
    return members


def _records(store: Store, runs: Sequence[str]) -> Iterator[tuple[str, ComparedRun]]:
    """Return all readable records of the store, of every version of Fedloom."""
    for run in runs:
        try:
            record = parse_json((store.folder(run) / RECORD).read_bytes())
            if isinstance(record["spec"], dict) and isinstance(record["code"], dict):
                yield run, from_json(ComparedRun, record)
        except (OSError, ValueError, KeyError, TypeError, FedloomError):
            continue


def _describe_run(
    run: str, planned: Mapping[str, Run], records: Mapping[str, ComparedRun]
) -> ComparedRun:
    """Return spec, code and edited files of a run, and those of the run from which it starts."""
    if run in records:
        description = records[run]
    else:
        member = planned[run]
        is_edited = any(not is_version(name) for name in member.code.values())
        code_files = _edited_files(member.spec) if is_edited else {}
        description = ComparedRun(member.spec, member.code, code_files, member.start)
    start = description.start
    # A foreign record may claim that its run starts from itself.
    candidates = {name: record for name, record in records.items() if name != run}
    if start is not None and (start in candidates or start in planned):
        first = _describe_run(start, planned, candidates)
        # In place of its id, the spec of the run from which this one starts.
        spec = cast("Spec", {**description.spec, "start": first.spec})
        code_files = {**first.code_files, **description.code_files}
        return replace(description, spec=spec, code_files=code_files)
    return description


def _edited_files(spec: Spec) -> dict[str, str]:
    from fl.plan.run_spec import RunSpec  # It imports pandas, which is slow.

    return RunSpec(spec).code_files


def _differences(run: ComparedRun, reference: ComparedRun) -> list[str]:
    files, reference_files = run.code_files, reference.code_files
    edits = [
        f"edited: {name}" for name in sorted(files) if files[name] != reference_files.get(name)
    ]
    edits += [
        f"edited in the nearest run: {name}" for name in sorted({*reference_files} - {*files})
    ]
    return [
        *edits,
        *_code_differences(run.code, reference.code, bool(edits)),
        *spec_differences(run.spec, reference.spec),
    ]


def spec_differences(
    spec: Spec | ComponentSpec, reference: Spec | ComponentSpec, prefix: str = ""
) -> Iterator[str]:
    """Yield the keys at which two nested specs differ: ``training.lr: 0.1, not 0.05``."""
    for key in sorted({*spec, *reference}):
        value, reference_value = spec.get(key), reference.get(key)
        name = f"{prefix}.{key}" if prefix else key
        if isinstance(value, Mapping) and isinstance(reference_value, Mapping):
            yield from spec_differences(value, reference_value, name)
        elif value != reference_value:
            yield f"{name}: {value!r}, not {reference_value!r}"


def _code_differences(
    code: Mapping[str, str], reference: Mapping[str, str], edits: bool
) -> Iterator[str]:
    """Return differences between names of code; different components are keys of the spec."""
    for key in sorted({*code} & {*reference} - {"dataset", "partition"}):
        name, reference_name = code[key], reference[key]
        if name != reference_name and is_version(name) and is_version(reference_name):
            yield f"version of {key}: {name}, not {reference_name}"
        elif name != reference_name and not edits:
            yield f"code of {key}: {name}, not {reference_name}"


def _first_lines(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:MAX_DIFFERENCES]
    if len(lines) > MAX_DIFFERENCES:
        yield f"and {len(lines) - MAX_DIFFERENCES} other differences"


def _spec_lines(spec: Spec | ComponentSpec, prefix: str = "") -> Iterator[str]:
    """Return a line for each group of a spec: ``method: fedprox, mu 0.1``."""
    scalars = {key: value for key, value in spec.items() if not isinstance(value, Mapping)}
    for key, value in spec.items():
        if isinstance(value, Mapping) and key == "start":
            yield from _spec_lines(value, "start.")
        elif isinstance(value, Mapping):
            words = [str(value[name]) for name in value if name == "name"]
            words += [f"{name} {inner}" for name, inner in value.items() if name != "name"]
            yield f"{prefix}{key}: {', '.join(words)}"
    if scalars:
        pairs = (f"{key} {value}" for key, value in scalars.items())
        yield f"{prefix or 'other keys: '}" + ", ".join(pairs)
