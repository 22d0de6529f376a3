"""A tiny study over each published data set, and a published one of each paper for a round.

``make fixtures-demo`` runs them from download to report. The files are generated, in the sets'
exact formats (``tests/sources``), and served over HTTP; everything after that is what runs on
the real ones. Config, data and results lie in a folder of their own, by default
``results/fixtures-demo``, which is made anew each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
# As a program this file is found by its path, and neither fl nor the generators are.
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "helpers")]

import published_once  # noqa: E402
import sources  # noqa: E402
from sources.server import serving  # noqa: E402

from fl.base import registry  # noqa: E402
from fl.base.errors import Location  # noqa: E402
from fl.base.schema import COMPLETE  # noqa: E402
from fl.data import preparation  # noqa: E402
from fl.data.download import LOCK_FILE as LOCK  # noqa: E402

WHERE = Location("fixtures-demo")
METHODS = {"local": None, "fedavg": None}
Studies = Mapping[str, Mapping[str, Any]]
Files = Mapping[str, Mapping[str, Any]]
"""By data set, keywords of its generator's ``write``."""


def study(name: str) -> dict[str, Any]:
    """The study over a set: one round of two methods, on its own clients or domains if it has.

    Empty for a set that no model takes.
    """
    generator = sources.generator(name)
    if getattr(generator, "STUDY", {}) is None:
        return {}
    entry = registry.find("data set", name, WHERE)
    dataset = entry.instantiate(entry.parse(generator.PARAMS, WHERE))
    partition: Any = {"homogeneous": {"clients": 2}}
    if dataset.natural_clients:
        partition = "natural"
    elif getattr(dataset, "domains", ()):
        partition = {"domain": {"clients_per_domain": 1}}
    return {
        "title": f"{entry.summary} (generated files)",
        "datasets": [{name: generator.PARAMS} if generator.PARAMS else name],
        "partitions": [partition],
        "models": ["cnn"],
        "seeds": [0],
        "training": {"rounds": 1, "batch_size": 8, "lr": 0.01},
        "methods": METHODS,
        **getattr(generator, "STUDY", {}),
    }


def write(folder: Path, studies: Studies, files: Files, url: str) -> None:
    """The generated files of each set, and a config with the studies."""
    for name, keywords in files.items():
        published = folder / "published" / name
        published.mkdir()
        sources.generator(name).write(published, **keywords)
    config = folder / "config"
    (config / "studies").mkdir(parents=True)
    shutil.copytree(ROOT / "config" / "published", config / "published")
    for name, keys in studies.items():
        (config / "studies" / f"{name}.yaml").write_text(yaml.safe_dump(keys, sort_keys=False))
    settings = {
        "studies": sorted(studies),
        "sources": {name: f"{url}/{name}" for name in files},
        "execution": {"backend": "loop", "device": "cpu", "memory_mb": 1000},
    }
    (config / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def run(folder: Path, studies: Studies, files: Files, bare: Sequence[str] = ()) -> int:
    """The whole graph in ``folder``, and a line on what came of each study and each set that none
    takes, ``bare``; Snakemake's exit status.
    """
    folder.joinpath("published").mkdir(parents=True)
    with serving(folder / "published") as server:
        write(folder, studies, files, server.url)
        command = [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
            *("--profile", str(ROOT / "workflow" / "profiles" / "default")),
            *("--directory", str(folder)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TORCH_HOME": str(folder / "torch")}
        status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        told = {name: outcome(folder, name) for name in studies}
        told |= {name: prepared(folder, name, server.url) for name in bare}
    for name, text in told.items():
        print(f"{name:24} {text}")
    return status


def outcome(folder: Path, name: str) -> str:
    """Where the report of a study is."""
    runs = folder / "results" / "tables" / f"{name}.runs.parquet"
    page = folder / "results" / "report" / f"{name}.html"
    # A report is made of what there is.
    whole = runs.exists() and (pd.read_parquet(runs)["state"] == COMPLETE).all()
    return str(page) if whole and page.exists() else "FAILED, see above"


def prepared(folder: Path, name: str, url: str) -> str:
    """Where the arrays of a set are, which is prepared now."""
    keys = registry.find("data set", name, WHERE).parse(sources.generator(name).PARAMS, WHERE)
    spec = {"name": name, **keys}
    lock = folder / "config" / LOCK
    found = preparation.prepare_dataset(
        spec, folder / "data", preparation.source_policy(spec, {name: f"{url}/{name}"}, lock)
    )
    return f"{found.folder} (no model here takes it)"


def main() -> int:
    """Generate, serve, run; what each data set and study came to, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="data sets and studies (default: all that there are)"
    )
    parser.add_argument("--into", type=Path, default=ROOT / "results" / "fixtures-demo")
    asked = parser.parse_args()
    folder = asked.into.resolve()
    names = asked.names or [*sources.names(), *published_once.STUDIES]
    shutil.rmtree(folder, ignore_errors=True)
    sets = [name for name in names if name not in published_once.STUDIES]
    papers = [name for name in names if name in published_once.STUDIES]
    statuses = []
    if sets:
        studies = {name: keys for name in sets if (keys := study(name))}
        bare = [name for name in sets if name not in studies]
        statuses.append(run(folder / "sets", studies, {name: {} for name in sets}, bare))
    if papers:
        (folder / "studies").mkdir(parents=True)
        published_once.weights(folder / "studies" / "torch")
        studies = {name: published_once.study(name) for name in papers}
        statuses.append(run(folder / "studies", studies, published_once.files(papers)))
    return max(statuses)


if __name__ == "__main__":
    sys.exit(main())
