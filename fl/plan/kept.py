"""Finished plans, kept until the config or the code changes.

To make a plan takes seconds, and where something is new the import of torch. Its result is kept in
``<results>/plan/kept/``, one file for each set of studies that was asked for, once there is a
``<results>/plan``; before that, planning writes nothing. The files decide nothing and may be
deleted.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fl.base import identity
from fl.base.errors import FedloomError
from fl.base.files import write_bytes
from fl.plan import config, fingerprint, plan, plan_files
from fl.plan.config import Settings
from fl.plan.plan import Plan

UNCHECKED = "?"
"""In place of a study's name, of which it cannot be one."""
NAMES = "runs.json"
PARTS = tuple(one.name for one in fields(Plan) if one.name != "settings")


def asked(folder: Path, studies: Sequence[str] = ()) -> Plan:
    """The plan, for the config as it is now, of the studies that a config folder or ``studies``
    names.

    Raises:
        ConfigError: For anything in the config that is wrong; an error is not kept.
    """
    settings, wanted, _ = plan.asked_for(folder, studies)
    # Taken before the plan is made: what is edited meanwhile makes it anew the next time.
    key = fingerprint.of(folder, wanted, settings)
    path = _place(settings, wanted)
    return _read(path, key, settings) or _made(path, key, folder, studies)


def unchecked(folder: Path, studies: Sequence[str] = ()) -> Plan:
    """As `asked`, for who only asks which runs there are: nothing is tried, nothing imports torch.

    Such a plan does not know how large models are, and may have runs that cannot be trained.
    """
    settings, wanted, _ = plan.asked_for(folder, studies)
    key = fingerprint.of(folder, wanted, settings)
    found = _read(_place(settings, wanted), key, settings)
    path = _place(settings, [*wanted, UNCHECKED])
    return found or _read(path, key, settings) or _made(path, key, folder, studies, checked=False)


def _place(settings: Settings, wanted: Sequence[str]) -> Path:
    return Path(settings.results) / "plan" / "kept" / f"{identity.digest(wanted)}.json"


def runs(folder: Path, studies: Sequence[str]) -> dict[str, list[str] | FedloomError]:
    """By study, the runs that it needs for the config as it is now; why it cannot be planned.

    As of `unchecked`, each study by itself. Names alone are kept, of all studies in one file.

    Raises:
        ConfigError: For what is wrong with the config of all studies.
    """
    settings = config.settings(folder)
    config.check_methods(folder)
    path = Path(settings.results) / "plan" / "kept" / NAMES
    known, found = _names(path), dict[str, list[str] | FedloomError]()
    listed = dict[str, dict[str, Any]]()
    # Taken before any plan is made: what is edited meanwhile makes it anew the next time.
    for name, key in fingerprint.each(folder, studies, settings).items():
        there = known.get(name, {})
        if there.get("key") != key or not plan.stands(there["watched"]):
            try:
                made = plan.make(folder, [name], checked=False)
            except FedloomError as error:
                found[name] = error
                continue
            members = (one["run"] for bundle in made.bundles.values() for one in bundle["runs"])
            there = {"key": key, "runs": sorted(members), "watched": made.watched}
        listed[name], found[name] = there, there["runs"]
    if listed != known:
        _keep(path, {"digest": identity.digest(listed), "studies": listed})
    return found


def _names(path: Path) -> dict[str, dict[str, Any]]:
    """What `runs` kept, by study; nothing if it is absent or damaged."""
    found = plan_files.read(path)
    known = found.get("studies", {})
    return dict(known) if found.get("digest") == identity.digest(known) else {}


def study(folder: Path, name: str) -> dict[str, Any]:
    """A study, for the config as it is now, read from ``<results>/plan`` if it is there."""
    settings = config.settings(folder)
    if name in settings.studies and plan.still(folder):
        return plan_files.part(Path(settings.results) / "plan", "studies", name)
    return asked(folder, [name]).studies[name]


def _read(path: Path, key: str, settings: Settings) -> Plan | None:
    """What is kept, unless it is for another config, damaged, or absent."""
    found = plan_files.read(path)
    parts = found.get("parts")
    if found.get("key") != key or not isinstance(parts, dict) or {*parts} != {*PARTS}:
        return None
    if found.get("digest") != identity.digest(parts) or not plan.stands(parts["watched"]):
        return None
    return Plan(settings=settings, **parts)


def _made(path: Path, key: str, folder: Path, studies: Sequence[str], checked: bool = True) -> Plan:
    made = plan.make(folder, studies, checked)
    parts = {name: getattr(made, name) for name in PARTS}
    _keep(path, {"key": key, "digest": identity.digest(parts), "parts": parts})
    return made


def _keep(path: Path, content: dict[str, Any]) -> None:
    """Write a file, where there is a plan; whoever may not write there asks again."""
    with contextlib.suppress(OSError, FedloomError):
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, json.dumps(content).encode())
