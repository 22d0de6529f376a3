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

from fl.code import identity
from fl.errors import FedloomError
from fl.files import write_bytes
from fl.planning import plan
from fl.planning.plan import Plan
from fl.study import config
from fl.study.config import Settings

UNCHECKED = "?"
"""In place of a study's name, of which it cannot be one."""
PARTS = tuple(one.name for one in fields(Plan) if one.name != "settings")


def asked(folder: Path, studies: Sequence[str] = ()) -> Plan:
    """The plan, for the config as it is now, of the studies that a config folder or ``studies``
    names.

    Raises:
        ConfigError: For anything in the config that is wrong; an error is not kept.
    """
    settings, wanted, _ = plan.asked_for(folder, studies)
    # Taken before the plan is made: what is edited meanwhile makes it anew the next time.
    key = plan.fingerprint(folder, wanted, settings)
    path = _place(settings, wanted)
    return _read(path, key, settings) or _made(path, key, folder, studies)


def unchecked(folder: Path, studies: Sequence[str] = ()) -> Plan:
    """As `asked`, for who only asks which runs there are: nothing is tried, nothing imports torch.

    Such a plan does not know how large models are, and may have runs that cannot be trained.
    """
    settings, wanted, _ = plan.asked_for(folder, studies)
    key = plan.fingerprint(folder, wanted, settings)
    found = _read(_place(settings, wanted), key, settings)
    path = _place(settings, [*wanted, UNCHECKED])
    return found or _read(path, key, settings) or _made(path, key, folder, studies, checked=False)


def _place(settings: Settings, wanted: Sequence[str]) -> Path:
    return Path(settings.results) / "plan" / "kept" / f"{identity.digest(wanted)}.json"


def study(folder: Path, name: str) -> dict[str, Any]:
    """A study, for the config as it is now, read from ``<results>/plan`` if it is there."""
    settings = config.settings(folder)
    if name in settings.studies and plan.still(folder):
        return plan.part(Path(settings.results) / "plan", "studies", name)
    return asked(folder, [name]).studies[name]


def _read(path: Path, key: str, settings: Settings) -> Plan | None:
    """What is kept, unless it is for another config, damaged, or absent."""
    found = plan.read(path)
    parts = found.get("parts")
    if found.get("key") != key or not isinstance(parts, dict) or {*parts} != {*PARTS}:
        return None
    if found.get("digest") != identity.digest(parts) or not plan.stands(parts["watched"]):
        return None
    return Plan(settings=settings, **parts)


def _made(path: Path, key: str, folder: Path, studies: Sequence[str], checked: bool = True) -> Plan:
    made = plan.make(folder, studies, checked)
    parts = {name: getattr(made, name) for name in PARTS}
    kept = {"key": key, "digest": identity.digest(parts), "parts": parts}
    # Whoever may not write there asks again.
    with contextlib.suppress(OSError, FedloomError):
        path.parent.mkdir(exist_ok=True)
        write_bytes(path, json.dumps(kept).encode())
    return made
