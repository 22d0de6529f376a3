"""What a run is computed with: the code and its commit, packages, the processor."""

from __future__ import annotations

import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from fl.base import plugins
from fl.base.files import is_file, parse_json, sha256

VERSION = "0.2.0.dev0"
"""Of the release that is under way; between releases the commit tells more, see `version`."""

PACKAGES = {
    "numpy": "numpy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "yaml": "pyyaml",
    "safetensors": "safetensors",
    "torchvision": "torchvision",
    "sklearn": "scikit-learn",
    "scipy": "scipy",
    "cvxpy": "cvxpy",
}
"""By module, the package whose version is told where the module was imported."""

ROOT = plugins.FL.parent


@cache
def commit() -> tuple[str, bool] | None:
    """The commit of the clone that this code lies in, or was copied from for jobs, and whether
    ``fl`` differed from it; None outside of clones.
    """
    if plugins.SNAPSHOT.is_file():
        copied = parse_json(plugins.SNAPSHOT.read_bytes())["commit"]
        return tuple(copied) if copied else None
    if not (ROOT / ".git").exists():
        return None
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", plugins.FL.name)
    return (head, bool(changes)) if head and changes is not None else None


def _git(*words: str) -> str | None:
    """What git says; None where there is no git, or it refuses."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(ROOT), *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def version() -> str:
    """``0.2.0.dev0+g1a2b3c4d5``, ``.dirty`` where ``fl`` was edited; outside of clones no more than
    the version of the release.
    """
    known = commit()
    if known is None:
        return VERSION
    head, dirty = known
    return f"{VERSION}+g{head[:9]}{'.dirty' * dirty}"


@cache
def versions() -> dict[str, str]:
    """By name, the versions of this code, of Python, and of what training imports."""
    import torch

    told = {
        "fedloom": version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version() or ""),
    }
    told |= {name: metadata.version(name) for key, name in PACKAGES.items() if key in sys.modules}
    return {name: str(number) for name, number in told.items() if number}


@cache
def environment() -> dict[str, Any]:
    """The commit, whether it was edited, a hash of the lock file, and the processor; what cannot be
    told is None.
    """
    head, dirty = commit() or (None, None)
    lock = ROOT / "requirements.lock"
    return {
        "commit": head,
        "dirty": dirty,
        "lock": sha256(lock)[:16] if is_file(lock) else None,
        "processor": processor(),
    }


def processor() -> str:
    """The processor's name, ``AMD EPYC 9654``; where Linux does not tell it, the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
