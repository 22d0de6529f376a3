"""The defaults of all config keys that name runs, beside the golden numbers.

A run's name leaves out keys that have their defaults, so that a key that comes later renames no
run. A default that changes is another number: its root gets the next version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl.api.training import Training
from fl.base import fields, identity, registry
from fl.base.errors import Location
from fl.plan import certification, run_spec

FILE = Path(__file__).parent / "defaults.json"

Defaults = Mapping[str, Mapping[str, Any]]
"""By root and key, as JSON has them."""


def now() -> Defaults:
    """Those of the code at hand."""
    targets = {identity.CORE: Training}
    for kind in run_spec.COMPONENT_KINDS.values():
        for root in certification.roots():
            if root.startswith(label := identity.entry(kind, "")):
                name = root.removeprefix(label)
                targets[root] = registry.find(kind, name, Location("")).target
    declared = {root: fields.fields(target).values() for root, target in targets.items()}
    return json.loads(
        json.dumps(
            {
                root: {f.name: f.default for f in keys if f.default is not fields.REQUIRED}
                for root, keys in declared.items()
            }
        )
    )


def load() -> Defaults:
    """Those that are kept."""
    return json.loads(FILE.read_text()) if FILE.is_file() else {}


def save(defaults: Defaults) -> None:
    """Keep these."""
    lines = (f"{json.dumps(root)}: {json.dumps(defaults[root])}" for root in sorted(defaults))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def changed(now: Defaults, before: Defaults) -> set[str]:
    """The roots of which a key has another default than before; new keys and gone ones do not
    count.
    """
    return {
        root
        for root in now.keys() & before.keys()
        if any(now[root][key] != before[root][key] for key in now[root].keys() & before[root])
    }
