"""One tiny study over each published data set, from download to report: ``make fixtures-demo``.

The files are generated, in the sets' exact formats (``tests/data/sources``), and served over HTTP;
everything after that is what runs on the real ones. Config, data and results lie in one folder of
their own, by default ``results/fixtures-demo``, which is made anew each time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
# As a program this file is found by its path, and neither fl nor the generators are.
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "data")]

import sources  # noqa: E402
from sources.server import serving  # noqa: E402

from fl.base import registry  # noqa: E402
from fl.base.errors import Where  # noqa: E402
from fl.data import materials  # noqa: E402
from fl.data.lock import NAME as LOCK  # noqa: E402

WHERE = Where("fixtures-demo")
METHODS = {"local": None, "fedavg": None}


def study(name: str) -> dict[str, Any]:
    """The study over a set: one round of two methods, on its own clients or domains if it has.

    Empty for a set that no model takes.
    """
    generator = sources.generator(name)
    if getattr(generator, "STUDY", {}) is None:
        return {}
    entry = registry.find("data set", name, WHERE)
    dataset = entry.make(entry.parse(generator.PARAMS, WHERE))
    partition: Any = {"homogeneous": {"clients": 2}}
    if dataset.natural:
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


def write(folder: Path, names: list[str], url: str) -> None:
    """The generated files of each set, and a config with a study over each."""
    studies = folder / "config" / "studies"
    studies.mkdir(parents=True)
    for name in names:
        files = folder / "published" / name
        files.mkdir(parents=True)
        sources.generator(name).write(files)
        if found := study(name):
            (studies / f"{name}.yaml").write_text(yaml.safe_dump(found, sort_keys=False))
    settings = {
        "studies": sorted(path.stem for path in studies.iterdir()),
        "sources": {name: f"{url}/{name}" for name in names},
        "execution": {"backend": "loop", "device": "cpu", "memory_mb": 1000},
    }
    (folder / "config" / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def run(folder: Path, names: list[str]) -> int:
    """The whole graph in ``folder``; Snakemake's exit status."""
    folder.joinpath("published").mkdir(parents=True)
    with serving(folder / "published") as server:
        write(folder, names, server.url)
        command = [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
            *("--profile", str(ROOT / "workflow" / "profiles" / "default")),
            *("--directory", str(folder)),
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        status = subprocess.run(command, cwd=folder, env=environment, check=False).returncode
        told = {name: outcome(folder, name, server.url) for name in names}
    for name, text in told.items():
        print(f"{name:20} {text}")
    return status


def outcome(folder: Path, name: str, url: str) -> str:
    """Where the report of a set is; a set without a model is prepared now."""
    if study(name):
        # A report is made of what there is; tables are only made of everything.
        whole = (folder / "results" / "tables" / f"{name}.parquet").exists()
        page = folder / "results" / "report" / f"{name}.html"
        return str(page) if whole else "FAILED, see above"
    keys = registry.find("data set", name, WHERE).parse(sources.generator(name).PARAMS, WHERE)
    spec = {"name": name, **keys}
    lock = folder / "config" / LOCK
    found = materials.prepare(
        spec, folder / "data", materials.supply(spec, {name: f"{url}/{name}"}, lock)
    )
    return f"{found.folder} (no model here takes it)"


def main() -> int:
    """Generate, serve, run; what each set came to, a line each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="data sets (default: all that have a generator)")
    parser.add_argument("--into", type=Path, default=ROOT / "results" / "fixtures-demo")
    asked = parser.parse_args()
    shutil.rmtree(asked.into, ignore_errors=True)
    return run(asked.into.resolve(), asked.names or sources.names())


if __name__ == "__main__":
    sys.exit(main())
