"""The code and the environment of runs: commit, version, packages, the processor.

Jobs of a cluster use a copy of the code, so that an edit or a pull changes no queued job.
"""

from __future__ import annotations

import io
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from functools import cache
from importlib import metadata
from pathlib import Path

from fl.base import files, identity, plugins
from fl.base.hashes import hash_bytes
from fl.plan import certification

VERSION = "0.2.0.dev0"
"""Version of the next release; `version` adds the commit."""

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
"""By module, the package whose version is recorded if the module was imported."""

BUILT_IN = {"mkl": r"Math Kernel Library Version ([\d.]+)", "onednn": r"MKL-DNN v([\d.]+)"}
"""By library that is a part of PyTorch, where PyTorch's description has its version."""

ROOT = plugins.FL.parent

MAX_COPIED_BYTES = 1 << 20
"""Largest file that is copied; larger files, such as data in a plugin's folder, are linked."""


@cache
def commit() -> tuple[str, bool] | None:
    """Return the commit of this code, and whether ``fl`` differs from it; None without a clone.

    A copy of the code for jobs has the commit of the clone from which it was copied.
    """
    if plugins.SNAPSHOT.is_file():
        copied = files.parse_json(plugins.SNAPSHOT.read_bytes())["commit"]
        return tuple(copied) if copied else None
    if not (ROOT / ".git").exists():
        return None
    head, changes = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", plugins.FL.name)
    return (head, bool(changes)) if head and changes is not None else None


def _git(*words: str) -> str | None:
    """Return the output of a git command; None if git is missing or fails."""
    try:
        result = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(ROOT), *words],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


MAX_TRIED_COMMITS = 10
"""Largest number of commits that are looked at for one whose code is certified."""


@cache
def last_certified() -> tuple[str, str] | None:
    """Return commit and date of the last state of this clone whose code is certified.

    It is one that wrote ``numbers.json``, and whose files are those that were certified. None
    without such a commit, without git, and without a clone.
    """
    if not (ROOT / ".git").exists():
        return None
    numbers = f"{plugins.FL.name}/{identity.NUMBERS.name}"
    listed = _git("log", f"-{MAX_TRIED_COMMITS}", "--format=%H %cs", "--", numbers) or ""
    for head, date in map(str.split, listed.splitlines()):
        if _is_certified(head, numbers):
            return head, date
    return None


def _is_certified(head: str, numbers: str) -> bool:
    """Whether the files at a commit are those that its ``numbers.json`` certifies."""
    words = ["git", "-C", str(ROOT), "archive", "--format=tar", head, plugins.FL.name]
    archive = subprocess.run(words, capture_output=True, check=False).stdout
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            contents = {
                info.name: file.read()
                for info in tar
                if (file := tar.extractfile(info)) is not None
            }
        certified = files.parse_json(contents[numbers])["files"]
        return all(
            hash_bytes(contents[label]) == hashes[0]
            for label, hashes in certified.items()
            if label.startswith(f"{plugins.FL.name}/")
        )
    except (tarfile.TarError, KeyError, ValueError):
        return False


def uncertified_note() -> str:
    """Return a sentence on shared code that is not certified as it is; empty if all is."""
    note = certification.uncertified_note()
    if not note:
        return ""
    advice = "`make golden`, which certifies it"
    if state := last_certified():
        advice += f", or `git checkout {state[0][:9]}`, the last certified state, of {state[1]}"
    return f"{note}. Try: {advice}"


def version() -> str:
    """Return the version with the commit: ``0.2.0.dev0+g1a2b3c4d5``, and ``.dirty`` if edited.

    Without a clone it is the version of the release.
    """
    head_and_dirty = commit()
    if head_and_dirty is None:
        return VERSION
    head, dirty = head_and_dirty
    return f"{VERSION}+g{head[:9]}{'.dirty' * dirty}"


@cache
def versions() -> dict[str, str]:
    """Return the versions of this code, of Python, and of imported packages, by name."""
    import torch

    built = {name: re.search(text, torch.__config__.show()) for name, text in BUILT_IN.items()}
    numbers = {
        "fedloom": version(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version() or ""),
        **{name: match[1] for name, match in built.items() if match},
    }
    numbers |= {
        name: metadata.version(name) for key, name in PACKAGES.items() if key in sys.modules
    }
    return {name: str(number) for name, number in numbers.items() if number}


@cache
def environment() -> dict[str, str | bool | None]:
    """Return the commit, whether the code was edited, a hash of the lock file, and the processor.

    So are the instructions that PyTorch uses on it, such as ``AVX512``. Values that cannot be found
    are None.
    """
    import torch

    head, dirty = commit() or (None, None)
    lock = ROOT / "requirements.lock"
    return {
        "commit": head,
        "dirty": dirty,
        "lock": files.sha256(lock)[:16] if files.is_file(lock) else None,
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def processor() -> str:
    """Return the processor's name, ``AMD EPYC 9654``; if it is unknown, the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def copy_code(results: Path) -> Path:
    """Copy ``fl`` and the plugins to a folder that is named by its content; return the folder.

    Raises:
        FedloomError: If a file cannot be written.
    """
    sources = {
        f"{name}/{path.relative_to(root).as_posix()}": path
        for name, root in plugins.roots().items()
        for path in sorted(root.rglob("[!.]*"))
        if path.is_file() and not _is_skipped(path.relative_to(root))
    }
    if (lock := ROOT / "requirements.lock").is_file():
        sources[lock.name] = lock
    current_commit = commit()
    hashes = {
        label: hash_bytes(path.read_bytes()) if _is_small(path) else str(path)
        for label, path in sources.items()
    }
    folder = (results / "code" / identity.digest([hashes, current_commit])).absolute()
    if not folder.exists():
        draft = files.temporary_name(folder)
        with files.disk_errors(folder):
            for label, path in sources.items():
                (draft / label).parent.mkdir(parents=True, exist_ok=True)
                if _is_small(path):
                    shutil.copyfile(path, draft / label)
                else:
                    (draft / label).symlink_to(path)
            files.write_json(draft / plugins.SNAPSHOT.name, {"commit": current_commit})
            if not files.move(draft, folder):  # Another Snakemake was first.
                shutil.rmtree(draft)
    return folder


def _is_skipped(path: Path) -> bool:
    return any(name == "__pycache__" or name.startswith(".") for name in path.parts)


def _is_small(path: Path) -> bool:
    return path.stat().st_size <= MAX_COPIED_BYTES
