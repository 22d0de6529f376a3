"""``fedloom init``: a folder in which Snakemake trains, without a clone."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from fl.base.files import disk_errors, write_bytes
from fl.base.package_data import CONFIG, WORKFLOW
from fl.cli.commands import YOUR_OWN, Commands
from fl.cli.printing import say

TEMPLATES = Path(__file__).parent / "workspace"


def add(commands: Commands) -> None:
    """Add the command."""
    sub = commands.add(YOUR_OWN, "init", _init, "write a workspace: a folder to train studies in")
    sub.add_argument(
        *("folder",), nargs="?", type=Path, default=Path(), help="its folder (default: this one)"
    )
    sub.add_argument("--slurm", action="store_true", help="with a profile for Slurm")
    sub.add_argument("--dvc", action="store_true", help="with a dvc.yaml")
    sub.add_argument(
        "--examples", action="store_true", help="with all studies of papers and their numbers"
    )


def sources(slurm: bool, dvc: bool, examples: bool) -> Iterator[tuple[str, Path]]:
    """Return each file of a workspace: its path there, and the file to copy.

    Args:
        slurm: Whether there is a profile for Slurm.
        dvc: Whether there is a ``dvc.yaml``.
        examples: Whether there are the studies of papers and the published numbers.
    """
    yield "Snakefile", TEMPLATES / "Snakefile"
    yield ".gitignore", TEMPLATES / "gitignore"
    yield "config/config.yaml", TEMPLATES / "config.yaml"
    yield "config/studies/first.yaml", TEMPLATES / "first.yaml"
    yield "mylab/README.md", TEMPLATES / "mylab.md"
    yield "profiles/default/config.yaml", WORKFLOW / "profiles" / "default" / "config.yaml"
    if slurm:
        yield "slurm/config.yaml", WORKFLOW / "profiles" / "slurm" / "config.yaml"
    if dvc:
        yield "dvc.yaml", TEMPLATES / "dvc.yaml"
    folders = ("studies", "published") if examples else ()
    for path in (path for name in folders for path in sorted((CONFIG / name).iterdir())):
        yield f"config/{path.relative_to(CONFIG).as_posix()}", path


def _init(parsed: argparse.Namespace) -> None:
    written = 0
    for name, source in sources(parsed.slurm, parsed.dvc, parsed.examples):
        path = parsed.folder / name
        if path.exists():
            is_equal = path.is_file() and path.read_bytes() == source.read_bytes()
            say(f"kept {path}, which exists{'' if is_equal else ' and differs from the new one'}")
            continue
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, source.read_bytes())
        written += 1
        if not name.startswith(("config/studies/", "config/published/")) or "first" in name:
            say(f"wrote {path}")
    say(f"{written} files written to {parsed.folder.resolve()}")
    steps = [f"cd {parsed.folder}"] if parsed.folder != Path() else []
    steps += ["git init", "dvc init"] if parsed.dvc else []
    say(f"Next: {' && '.join([*steps, 'fedloom plan', 'fedloom run'])}")
