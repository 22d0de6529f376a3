"""``fedloom doctor``: what is installed, what this machine has, and what is missing for what."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from fl.base import arithmetic
from fl.base.errors import FedloomError
from fl.base.files import check_writable, sharing_problem
from fl.base.units import size
from fl.cli.commands import add_config_option, say
from fl.plan import config
from fl.plan.config import is_installed

PURPOSE_BY_PACKAGE = {
    "snakemake": "fedloom run",
    "snakemake_executor_plugin_slurm": "snakemake --profile slurm",
    "sklearn": "the data set digits",
    "torchvision": "pretrained models",
    "scipy": "the tests of a report",
    "jinja2": "reports",
    "matplotlib": "figures",
    "dvc": "versions of results",
    "cvxpy": "a solver to compare with",
    "dp_accounting": "epsilon",
    "skimage": "scores of attacks",
    "lpips": "scores of attacks",
    "nibabel": "NIfTI volumes",
    "rocrate": "crates",
    "optuna": "fedloom search",
    "tokenizers": "texts by a tokenizer",
    "transformers": "pretrained models of texts",
    "timm": "pretrained models of images",
    "rich": "fedloom watch",
}
"""Purpose of each package, by the package's import name."""

PACKAGES_BY_EXTRA = {
    "extras": {"dvc", "cvxpy", "dp_accounting", "skimage", "lpips", "nibabel", "rocrate", "optuna"},
    "pretrained": {"tokenizers", "transformers", "timm"},
    "watch": {"rich"},
}
"""Packages of the optional extras; the others are in `fedloom[workflow]`."""

PURPOSE_BY_PROGRAM = {"git": "commits in results", "pdflatex": "papers from tables"}
"""Purpose of programs outside Python."""

TRAINING_PACKAGES = ("torch", "numpy", "pandas", "pyarrow", "pyyaml", "safetensors")


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.set_defaults(run=_doctor)


def lines(folder: Path) -> Iterator[str]:
    """Return a line for each thing that training, Slurm and reports need.

    Args:
        folder: Config folder, which need not exist.
    """
    from fl.runner import environment

    yield f"fedloom    {environment.version()}, Python {platform.python_version()}"
    yield f"code       {environment.uncertified_note() or 'shared code is certified'}"
    yield f"training   {', '.join(_version(name) for name in TRAINING_PACKAGES)}"
    for extra in ("workflow", *PACKAGES_BY_EXTRA):
        yield f"{extra:10} {_missing_packages(extra)}"
    missing = [
        f"{name} ({purpose})"
        for name, purpose in PURPOSE_BY_PROGRAM.items()
        if not shutil.which(name)
    ]
    yield f"programs   {_shortage(missing)}"
    yield f"processor  {environment.processor()}, {_cores()}, {_memory()}"
    yield f"arithmetic {_arithmetic()}"
    yield f"GPU        {_gpus()}"
    yield f"Slurm      {_slurm()}"
    yield from _folder_lines(folder)


def _doctor(parsed: argparse.Namespace) -> None:
    for line in lines(parsed.config):
        say(line)


def _shortage(missing: Sequence[str]) -> str:
    return f"missing: {', '.join(missing)}" if missing else "complete"


def _version(package: str) -> str:
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package} missing"


def _missing_packages(extra: str) -> str:
    """Return which packages of an extra are missing, and for what."""
    optional = {name for names in PACKAGES_BY_EXTRA.values() for name in names}
    names = PACKAGES_BY_EXTRA.get(extra, PURPOSE_BY_PACKAGE.keys() - optional)
    missing = [
        f"{name} ({purpose})"
        for name, purpose in PURPOSE_BY_PACKAGE.items()
        if name in names and not is_installed(name)
    ]
    advice = f"Try: python -m pip install 'fedloom[{extra}]'"
    return f"{_shortage(missing)}. {advice}" if missing else "all packages are here"


def _arithmetic() -> str:
    """Return whether runs are the same on this processor and others."""
    if arithmetic.can_be_portable():
        return f"{arithmetic.PORTABLE}: runs have the same bits on all processors with AVX2 and FMA"
    return (
        f"{arithmetic.NATIVE}: the last digits of runs are those of this processor, which is no "
        "x86-64 one with AVX2 and FMA"
    )


def _cores() -> str:
    return f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} cores"


def _memory() -> str:
    return f"{size(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))} of memory"


def _gpus() -> str:
    """Return the GPUs that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return "none that torch can use: training runs on the processor"
    cards = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return ", ".join(f"{card.name} with {size(card.total_memory)}" for card in cards)


def _slurm() -> str:
    """Return the time limits of Slurm's partitions."""
    if not shutil.which("sinfo"):
        return "not here: `snakemake` trains on this machine"
    try:
        words = ["sinfo", "--noheader", "--format=%P %l"]
        process = subprocess.run(words, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"does not answer: {error}"
    if process.returncode:
        return f"does not answer: {process.stderr.strip().rpartition(': ')[2]}"
    return f"time limits by partition: {', '.join(process.stdout.splitlines()) or 'no partition'}"


def _folder_lines(folder: Path) -> Iterator[str]:
    """Return what is wrong with the folders of a workspace, or that all can be written."""
    if not (folder / "config.yaml").is_file():
        yield f"folder     {Path.cwd()} is no workspace. Try: fedloom init"
        return
    settings = config.read_settings(folder)
    paths = [Path(path) for path in (settings.data, settings.results, settings.store)]
    problems = list[str]()
    for path in dict.fromkeys(paths):
        try:
            check_writable(path)
        except FedloomError as error:
            problems.append(str(error))
    problems += filter(None, [sharing_problem(Path(settings.store))])
    free = size(shutil.disk_usage(Path.cwd()).free)
    names = ", ".join(map(str, dict.fromkeys(paths)))
    yield f"folders    {'; '.join(problems) or f'{names} can be written'}; {free} free"
