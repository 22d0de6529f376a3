"""The files of a plan, in ``<results>/plan/``, read with their checks.

They are rewritten only when their content changes, because the graph goes by their times.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fl.base.errors import ConfigError, DataError, Where
from fl.base.files import disk_errors, parse_json, write_json
from fl.plan import plan_check
from fl.plan.bundle import Bundle


def write(path: Path, content: Any) -> Any:
    """Write ``content`` unless the file has it already; returns it as it will be read."""
    plain = json.loads(json.dumps(content))
    if read(path) != plain:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, plain)
    return plain


def summary(home: Path) -> dict[str, Any]:
    """``plan.json`` of a folder, empty where there is none; `DataError` if it is none."""
    path = home / "plan.json"
    return _checked(path, plan_check.check_summary)[0] if path.exists() else {}


def part(home: Path, kind: str, name: str) -> dict[str, Any]:
    """A study, bundle, data set or partition of the plan, read from its file, or `DataError`."""
    return _checked(home / kind / f"{name}.json", plan_check.KINDS[kind])[0]


def bundle(home: Path, name: str) -> Bundle:
    """A bundle of the plan, or `DataError`."""
    found: Bundle = _checked(home / "bundles" / f"{name}.json", Bundle.of)[1]
    return found


def _checked(path: Path, check: Callable[[Any, Where], Any]) -> tuple[dict[str, Any], Any]:
    """What a file says, and what the check makes of it."""
    try:
        found = parse_json(path.read_bytes())
        made = check(found, Where(str(path)))
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: cannot be read ({error}); plan first: python -m fl plan --write"
        ) from None
    except ConfigError as error:
        raise DataError(f"{error}; plan again: python -m fl plan --write") from None
    return dict(found), made


def read(path: Path) -> dict[str, Any]:
    """A file of the plan, whatever the config says now; empty if there is none."""
    try:
        found = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
