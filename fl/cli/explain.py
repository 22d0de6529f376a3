"""Why a run differs from those that are there already."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fl.base.errors import FedloomError, Where
from fl.base.identity import difference
from fl.plan import specs
from fl.store.run_check import shaped
from fl.store.store import Store

NO_WEIGHTS = ", without the final weights that are asked for now: it is trained once more for them"


@dataclass(frozen=True)
class _Told:
    """What is asked of a record."""

    state: str
    spec: dict[str, Any]
    code_files: dict[str, str]
    start: str | None


def explain(
    wanted: str,
    planned: Mapping[str, Mapping[str, Any]],
    store: Store,
    left_out: Sequence[str] = (),
) -> Iterator[str]:
    """Lines about the run whose id begins with ``wanted``.

    They show the run's spec, and the keys and code files in which it differs from the nearest run
    in the store.

    Args:
        planned: Members of plans' bundles, by run id.
        left_out: A line for each study that could not be planned.

    Raises:
        FedloomError: For an id that no run has, or several have.
    """
    there = store.runs()
    matching = sorted({*there, *planned})
    matching = [run for run in matching if run.startswith(wanted)]
    if len(matching) != 1:
        found = ", ".join(matching) or "none"
        raise FedloomError(
            f"run {wanted!r}: {found} of the {len({*there, *planned})} runs planned or in "
            f"{store.root} begins so; allowed: the beginning of one id (python -m fl plan --runs)"
            + "".join(f"; {line}" for line in left_out)
        )
    [run] = matching
    own = _facts(run, planned, store)
    asked = planned.get(run, {}).get("keep_weights")
    bare = asked and store.has(run) and not store.has_weights(run)
    yield f"run {run}: {own['state']}{NO_WEIGHTS if bare else ''}"
    yield json.dumps(own["spec"], indent=2)
    others = dict(_others(run, planned, store))
    if not others:
        yield f"no other run is in {store.root}"
        return
    nearest = min(others, key=lambda other: len(_differences(own, others[other])))
    yield f"nearest run there: {nearest}; this one differs in"
    yield from (f"  {line}" for line in _differences(own, others[nearest]) or ["nothing"])


def _others(
    run: str, planned: Mapping[str, Mapping[str, Any]], store: Store
) -> Iterator[tuple[str, dict[str, Any]]]:
    """The other runs of the store, except those that `fl store verify` finds damaged."""
    for other in store.runs():
        if other != run:
            with contextlib.suppress(FedloomError):
                yield other, _facts(other, planned, store)


def _facts(run: str, planned: Mapping[str, Mapping[str, Any]], store: Store) -> dict[str, Any]:
    """State, spec and code of a run; if it starts from another run, with that one's."""
    if store.has(run):
        found = shaped(_Told, store.record(run), Where(str(store.place(run))))
    else:
        files = specs.code_files(planned[run]["spec"])
        found = {**planned[run], "state": "not trained", "code_files": files}
    facts = {key: found[key] for key in ("state", "spec", "code_files")}
    start = found["start"]
    if start is not None and (start in planned or store.has(start)):
        before = _facts(start, planned, store)
        facts["spec"] = {**facts["spec"], "start": before["spec"]}
        facts["code_files"] = {**before["code_files"], **facts["code_files"]}
    return facts


def _differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    mine, other = ours["code_files"], theirs["code_files"]
    files = sorted(name for name in {*mine, *other} if mine.get(name) != other.get(name))
    return [
        *difference(ours["spec"], theirs["spec"]),
        *(f"the code of {name}" for name in files),
    ]
