"""New files of a user: ``fedloom init`` writes a workspace, ``fedloom new`` a component that runs.

A workspace is a folder in which Snakemake trains, without a clone.
"""

from __future__ import annotations

import argparse
import keyword
import re
from collections.abc import Iterator
from pathlib import Path
from string import Template

from fl.base import registry
from fl.base.errors import FedloomError
from fl.base.files import disk_errors, write_bytes
from fl.base.folders import CONFIG, WORKFLOW
from fl.cli.commands import add_config_option, say
from fl.plan import config

KIND_BY_WORD = {
    "method": "method",
    "term": "term",
    "alteration": "alteration",
    "model": "model",
    "dataset": "data set",
    "scheme": "partition scheme",
    "analysis": "analysis",
    "filter": "upload filter",
    "aggregation": "aggregation",
    "devices": "devices",
    "selection": "selection",
    "server": "asynchronous server",
}
"""Kind of component by the word of the command line."""

TEMPLATE_FOLDER = Path(__file__).parent / "templates"

WORKSPACE_FILES = Path(__file__).parent / "workspace"

EXAMPLES = ("studies", "tracks", "published")
"""Folders of the package's config that a workspace with examples has."""


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    if name == "init":
        parser.add_argument(
            *("folder",),
            nargs="?",
            type=Path,
            default=Path(),
            help="its folder (default: this one)",
        )
        parser.add_argument("--slurm", action="store_true", help="with a profile for Slurm")
        parser.add_argument("--dvc", action="store_true", help="with a dvc.yaml")
        parser.add_argument(
            "--examples", action="store_true", help="with all studies, tracks and their numbers"
        )
        parser.set_defaults(run=_init)
        return
    parser.add_argument("kind", choices=sorted(KIND_BY_WORD))
    parser.add_argument("name", help="its name in configs: small letters, digits and dashes")
    parser.add_argument(
        *("--in",),
        dest="folder",
        type=Path,
        help="plugin folder (default: the config's first, mylab)",
    )
    parser.set_defaults(run=_new)


def write_component(kind: str, name: str, folder: Path) -> Path:
    """Write ``<name>.py`` from a template into the kind's folder in ``folder``; return its path.

    Args:
        kind: Word of `KIND_BY_WORD`.
        name: Name in configs.
        folder: Folder of plugins.

    Raises:
        FedloomError: For a name that configs cannot use, or if the file exists.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise FedloomError(
            f"name: cannot be {name!r}",
            "small letters, digits and single dashes between them, beginning with a letter",
        )
    cls = "".join(word.capitalize() for word in name.split("-"))
    function = name.replace("-", "_")
    template = (TEMPLATE_FOLDER / f"{kind}.txt").read_text(encoding="utf-8")
    defined = function if "$function" in template else cls
    exists = name in registry.names(KIND_BY_WORD[kind])
    if exists or keyword.iskeyword(defined) or re.search(rf"\b{defined}\b", template):
        raise FedloomError(f"name: {name!r} is in use", advice="choose another name")
    path = folder / Path(registry.FOLDER_BY_KIND[KIND_BY_WORD[kind]]).name / f"{function}.py"
    if path.exists():
        raise FedloomError(f"{path}: exists already", advice="choose another name")
    text = Template(template).substitute(name=name, cls=cls, function=function)
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, text.encode())
    return path


def workspace_sources(slurm: bool, dvc: bool, examples: bool) -> Iterator[tuple[str, Path]]:
    """Return each file of a workspace: its path there, and the file to copy.

    Args:
        slurm: Whether there is a profile for Slurm.
        dvc: Whether there is a ``dvc.yaml``.
        examples: Whether there are studies of papers, tracks and published numbers.
    """
    yield "Snakefile", WORKSPACE_FILES / "Snakefile"
    yield ".gitignore", WORKSPACE_FILES / "gitignore"
    yield "config/config.yaml", WORKSPACE_FILES / "config.yaml"
    yield "config/studies/first.yaml", WORKSPACE_FILES / "first.yaml"
    yield "README.md", WORKSPACE_FILES / "readme.md"
    yield "mylab/README.md", WORKSPACE_FILES / "mylab.md"
    yield "profiles/default/config.yaml", WORKFLOW / "profiles" / "default" / "config.yaml"
    if slurm:
        yield "slurm/config.yaml", WORKFLOW / "profiles" / "slurm" / "config.yaml"
    if dvc:
        yield "dvc.yaml", WORKSPACE_FILES / "dvc.yaml"
    folders = EXAMPLES if examples else ()
    for path in (path for name in folders for path in sorted((CONFIG / name).rglob("*.*"))):
        yield f"config/{path.relative_to(CONFIG).as_posix()}", path


def _init(parsed: argparse.Namespace) -> None:
    written = 0
    for name, source in workspace_sources(parsed.slurm, parsed.dvc, parsed.examples):
        path = parsed.folder / name
        if path.exists():
            is_equal = path.is_file() and path.read_bytes() == source.read_bytes()
            difference = "" if is_equal else " and differs from the new file"
            say(f"{path} exists{difference}: not changed")
            continue
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, source.read_bytes())
        written += 1
        is_example = any(name.startswith(f"config/{folder}/") for folder in EXAMPLES)
        if not is_example or "first" in name:
            say(f"wrote {path}")
    say(f"{written} files written to {parsed.folder.resolve()}")
    steps = [f"cd {parsed.folder}"] if parsed.folder != Path() else []
    steps += ["git init", "dvc init"] if parsed.dvc else []
    say(f"Next: {' && '.join([*steps, 'fedloom plan', 'fedloom run'])}")


def _new(parsed: argparse.Namespace) -> None:
    configured = config.read_settings(parsed.config).plugins
    folder = parsed.folder or Path(configured[0] if configured else "mylab")
    say(f"wrote {write_component(parsed.kind, parsed.name, folder)}")
    if str(folder) not in configured:
        say(f"Next: write `plugins: [{folder}]` in {parsed.config / 'config.yaml'}")
