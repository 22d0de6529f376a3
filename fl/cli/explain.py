"""Why a run differs from those that are there already."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fl.base import identity
from fl.base.errors import FedloomError
from fl.base.files import parse_json
from fl.store.layout import RECORD
from fl.store.store import Store

NO_WEIGHTS = (
    ", without the final weights or predictions that are asked for now: it is trained again"
)
SHOWN = 5
"""Edited files that are named; of a run of before identity had versions, all files would be."""

Run = Mapping[str, Any]
"""A member of a bundle, or a record: ``spec``, ``code``, ``start``, perhaps ``code_files``."""


def explain(
    wanted: str, planned: Mapping[str, Run], store: Store, left_out: Sequence[str] = ()
) -> Iterator[str]:
    """Lines about the run whose id begins with ``wanted``.

    The first says in what it differs from the nearest run in the store: a version, an edit, a key.

    Args:
        planned: Members of plans' bundles, by run id.
        left_out: A line for each study that could not be planned.

    Raises:
        FedloomError: For an id that no run has, or several have.
    """
    there = store.runs()
    matching = sorted(run for run in {*there, *planned} if run.startswith(wanted))
    if len(matching) != 1:
        begins = f"{', '.join(matching)} begin so" if matching else "begins no run"
        raise FedloomError(
            f"run {wanted!r}: {begins} of the {len(there)} in {store.root} and the {len(planned)} "
            "of the studies asked for. Allowed: the beginning of one (python -m fl plan --runs), "
            "and beside it the study of a run that is not stored"
            + "".join(f"; {line}" for line in left_out)
        )
    [run] = matching
    records = dict(_records(store, there))
    ours = _told(run, planned, records)
    apart = {
        other: _differences(ours, _told(other, planned, records))
        for other in records
        if other != run
    }
    nearest = min(apart, key=lambda other: len(apart[other]), default=None)
    if nearest is None:
        yield f"no other run is in {store.root}"
    else:
        yield "; ".join(_shortened(apart[nearest])) or "nothing sets it apart"
    bare = run in there and not store.has(run, planned.get(run, {}).get("keep", ()))
    state = records[run]["state"] if run in records else "not trained"
    beside = f"; the nearest run in {store.root} is {nearest}" if nearest else ""
    yield f"run {run}: {state}{NO_WEIGHTS if bare else ''}{beside}"
    yield from _keys(ours["spec"])


def planned_runs(plan: Path, wanted: str) -> dict[str, Run]:
    """The members of the bundles of a written plan in which ``wanted`` occurs, by run id."""
    members: dict[str, Run] = {}
    for path in (plan / "bundles").glob("*.json"):
        content = path.read_bytes()
        if wanted.encode() in content:
            members |= {member["run"]: member for member in parse_json(content)["runs"]}
    return members


def _records(store: Store, runs: Sequence[str]) -> Iterator[tuple[str, Run]]:
    """The records of the store that can be read, whatever version of Fedloom wrote them."""
    for run in runs:
        try:
            record = parse_json((store.place(run) / RECORD).read_bytes())
            if isinstance(record["spec"], dict) and isinstance(record["code"], dict):
                yield run, {"state": "", "start": None, "code_files": {}, **record}
        except (OSError, ValueError, KeyError, TypeError, FedloomError):
            continue


def _told(run: str, planned: Mapping[str, Run], records: Mapping[str, Run]) -> dict[str, Any]:
    """Spec, code and edited files of a run; if it starts from another run, with that one's."""
    if run in records:
        record = records[run]
        told = {key: dict(record[key]) for key in ("spec", "code", "code_files")}
    else:
        record = planned[run]
        # As JSON has it: a tuple of a plan is the list of a stored run.
        spec, code = json.loads(json.dumps(record["spec"])), dict(record["code"])
        edited = any(not _is_version(name) for name in code.values())
        told = {"spec": spec, "code": code, "code_files": _edited(spec) if edited else {}}
    start = record.get("start")
    # A record of others may say that its run starts from itself.
    others = {name: known for name, known in records.items() if name != run}
    if start is not None and (start in others or start in planned):
        before = _told(start, planned, others)
        told["spec"]["start"] = before["spec"]
        told["code_files"] = before["code_files"] | told["code_files"]
    return told


def _edited(spec: Mapping[str, Any]) -> dict[str, str]:
    from fl.plan.run_spec import RunSpec  # It imports pandas, which takes as long as all else.

    return RunSpec(spec).code_files


def _is_version(name: str) -> bool:
    """Whether this stands for certified code, and is not a hash, see `identity.root_code`."""
    return len(name) < 16


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    mine, other = ours["code_files"], theirs["code_files"]
    edits = [f"edited: {name}" for name in sorted(mine) if mine[name] != other.get(name)]
    edits += [f"edited there: {name}" for name in sorted({*other} - {*mine})]
    return [
        *edits,
        *_versions(ours["code"], theirs["code"], bool(edits)),
        *identity.spec_differences(ours["spec"], theirs["spec"]),
    ]


def _versions(ours: Mapping[str, str], theirs: Mapping[str, str], edits: bool) -> Iterator[str]:
    """What differs in the names of code; entries that differ by themselves are keys of the spec."""
    for key in sorted({*ours} & {*theirs} - {"dataset", "partition"}):
        mine, other = ours[key], theirs[key]
        if mine != other and _is_version(mine) and _is_version(other):
            yield f"numbers of {key}: version {mine}, not {other}"
        elif mine != other and not edits:
            yield f"the code of {key}: {mine}, not {other}"


def _shortened(lines: Sequence[str]) -> Iterator[str]:
    yield from lines[:SHOWN]
    if len(lines) > SHOWN:
        yield f"and {len(lines) - SHOWN} other differences"


def _keys(spec: Mapping[str, Any], at: str = "") -> Iterator[str]:
    """A spec, a line for each of its groups: ``method: fedprox, mu 0.1``."""
    plain = {key: value for key, value in spec.items() if not isinstance(value, Mapping)}
    for key, value in spec.items():
        if isinstance(value, Mapping) and key == "start":
            yield from _keys(value, "start.")
        elif isinstance(value, Mapping):
            told = [str(value[name]) for name in value if name == "name"]
            told += [f"{name} {inner}" for name, inner in value.items() if name != "name"]
            yield f"{at}{key}: {', '.join(told)}"
    if plain:
        yield f"{at or 'also: '}" + ", ".join(f"{key} {value}" for key, value in plain.items())
