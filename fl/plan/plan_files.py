"""The files of a plan, in ``<results>/plan/``: JSON with a format's number and a checksum.

They are rewritten only when their content changes, because the graph goes by their times. One that
was edited, truncated or written by another version of Fedloom is refused: a plan is made in
seconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fl.base.digest import digest
from fl.base.errors import DataError
from fl.base.files import disk_errors, parse_json, write_json
from fl.plan.bundle import Bundle
from fl.plan.bundle import read as read_bundle

FORMAT = 1
"""To be raised when readers need what earlier versions did not write."""

KINDS = ("studies", "bundles", "datasets", "partitions", "analyses")
"""The folders of a plan, with a file for each of what they are named after."""


def write(path: Path, content: Any) -> Any:
    """Write ``content`` unless the file has it already; returns it as it will be read."""
    plain = json.loads(json.dumps(content))
    sealed = {**plain, "format": FORMAT, "checksum": digest([FORMAT, plain])}
    if read(path) != sealed:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, sealed)
    return plain


def summary(home: Path) -> dict[str, Any]:
    """``plan.json`` of a folder, empty where there is none; `DataError` if it was changed."""
    path = home / "plan.json"
    return checked(path) if path.exists() else {}


def part(home: Path, kind: str, name: str) -> dict[str, Any]:
    """A study, bundle, data set, partition or analysis of the plan, or `DataError`."""
    return checked(home / kind / f"{name}.json")


def bundle(home: Path, name: str) -> Bundle:
    """A bundle of the plan, or `DataError`."""
    return read_bundle(home / "bundles" / f"{name}.json")


def checked(path: Path) -> dict[str, Any]:
    """What a file of a plan says; `DataError` if it is not as it was written."""
    try:
        content = parse_json(path.read_bytes())
        form, checksum = content.pop("format"), content.pop("checksum")
        whole = form == FORMAT and checksum == digest([FORMAT, content])
        reason = "" if whole else "changed since, or by another version of Fedloom"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        allowed = "a file that `python -m fl plan --write` wrote, which makes it anew"
        raise DataError(
            f"{path}: cannot be read as a part of a plan ({reason}). Allowed: {allowed}"
        )
    return dict(content)


def read(path: Path) -> dict[str, Any]:
    """A file of the plan as it is, checked by nobody; empty if there is none."""
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
