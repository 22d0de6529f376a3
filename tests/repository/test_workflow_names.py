"""The workflow's files, which no type checker reads, use names of `fl` that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SNAKEFILE = ROOT / "workflow" / "Snakefile"
FILES = [SNAKEFILE, *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]


def imported_modules() -> dict[str, ModuleType]:
    """Return the modules that the Snakefile imports, by name; its other imports must exist."""
    modules = {}
    for match in re.finditer(r"from (fl[\w.]*) import ([\w, ]+)", SNAKEFILE.read_text()):
        package = importlib.import_module(match[1])
        for name in match[2].split(", "):
            value = getattr(package, name, None)
            if value is None or isinstance(value, ModuleType):
                modules[name] = importlib.import_module(f"{match[1]}.{name}")
    return modules


def test_the_workflow_uses_names_that_exist() -> None:
    modules = imported_modules()
    uses = {
        (module, name)
        for path in FILES
        for module, name in re.findall(r'(?<![\w./"])(\w+)\.(\w+)', path.read_text())
        if module in modules and name != "json"
    }
    assert len(uses) > 8
    assert not [f"{module}.{name}" for module, name in uses if not hasattr(modules[module], name)]
