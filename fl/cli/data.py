"""Commands that make the data of a plan: ``download``, ``prepare`` and ``partition``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fl.base.specs import ComponentSpec
from fl.cli.commands import add_config_option
from fl.data import partitioning, preparation
from fl.data.download import LOCK_FILE
from fl.data.preparation import SourcePolicy
from fl.plan import config, plan_files


def add(parser: argparse.ArgumentParser, name: str) -> None:
    """Add the options of the command ``name``."""
    add_config_option(parser)
    parser.add_argument("name", help="its name or id in results/plan")
    run_by_name = {"download": _download, "prepare": _prepare, "partition": _partition}
    parser.set_defaults(run=run_by_name[name])


def _download(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    spec = plan_files.read_dataset(settings.results, parsed.name)
    preparation.download_files(spec, Path(settings.data), _supply(parsed, settings, spec))


def _prepare(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    spec = plan_files.read_dataset(settings.results, parsed.name)
    preparation.prepare_dataset(spec, Path(settings.data), _supply(parsed, settings, spec))


def _partition(parsed: argparse.Namespace) -> None:
    settings = config.read_settings(parsed.config)
    planned = plan_files.read_partition(settings.results, parsed.name)
    supply = _supply(parsed, settings, planned.spec)
    root, results = Path(settings.data), Path(settings.results)
    partitioning.make_partition(planned.scheme, planned.spec, root, results, supply)


def _supply(
    parsed: argparse.Namespace, settings: config.Settings, spec: ComponentSpec
) -> SourcePolicy:
    return preparation.source_policy(spec, settings.sources, parsed.config / LOCK_FILE)
