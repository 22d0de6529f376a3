"""What the graph must be told about the store, before Snakemake looks at files and their times.

The store is the truth about runs. A *marker* says that all runs of a bundle are in it, so that
Snakemake, which knows files only, can go by it. Whenever the workflow is parsed, markers are
brought in line with the store and tables of another plan are removed. After that what is there is
right, and Snakemake need not look at times, which say nothing after a clone or a pull.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl import outcome
from fl.files import disk_errors
from fl.store import Store
from fl.tables import read_plan_hash


def marker(results: Path, bundle: str) -> Path:
    """Where the marker of a bundle stands."""
    return results / "markers" / bundle


def settle(plan: Mapping[str, Any]) -> None:
    """Bring markers and tables in line with the store and with the plan.

    Tables that are not those of all runs of this plan are removed, and with them what is made of
    them: Snakemake makes again what is missing, but does not ask whether the tables behind a report
    that is there are. Raises `FedloomError` if the disk refuses.
    """
    results = Path(plan["settings"]["results"])
    whole = mark(plan)
    _date_back(results, Path(plan["settings"]["data"]))
    for name, study in plan["studies"].items():
        made = outcome.paths(results, name)
        wanted = (study["hash"], True)
        if not all(whole[bundle] for bundle in study["bundles"]) or any(
            read_plan_hash(path) != wanted for path in made[:2]
        ):
            pages = [results / "report" / f"{name}{end}" for end in (".html", ".md", ".tex")]
            with disk_errors(results):
                for path in (*made, *pages):
                    path.unlink(missing_ok=True)


def mark(plan: Mapping[str, Any]) -> dict[str, bool]:
    """Bring the markers of a plan in line with the store; which bundles are whole.

    A bundle whose runs are all there (with the weights that later stages need) gets its marker;
    any other loses it. Raises `FedloomError` if the disk refuses.
    """
    settings = plan["settings"]
    results, store = Path(settings["results"]), Store(Path(settings["store"]))
    whole = {name: _whole(bundle, store) for name, bundle in plan["bundles"].items()}
    with disk_errors(results / "markers"):
        for name, there in whole.items():
            path = marker(results, name)
            if there and not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            elif not there:
                path.unlink(missing_ok=True)
    return whole


def _date_back(results: Path, data: Path) -> None:
    """Give what jobs start from and is dated in the future the time of now.

    Snakemake takes a job for failed whose output is older than an input, so that after a step back
    of the clock nothing could be made until the clock is again where it was.
    """
    found = (
        *data.glob("raw/*/sources.json"),
        *data.glob("prepared/*/dataset.json"),
        *results.glob("partitions/*/partition.json"),
        *results.glob("markers/*"),
        *results.glob("tables/*.parquet"),
    )
    now = time.time()
    for path in found:
        # What is somebody else's, or was removed just now, is left as it is.
        with contextlib.suppress(OSError):
            if path.stat().st_mtime > now:
                os.utime(path)


def _whole(bundle: Mapping[str, Any], store: Store) -> bool:
    return all(
        (store.has_weights if run in bundle["keep_weights"] else store.has)(run)
        for run in bundle["runs"]
    )


def gpus(device: str) -> int:
    """How many GPUs a training job takes: one, if it asks for one or finds any on this machine."""
    return int(device == "cuda" or (device == "auto" and any(Path("/dev").glob("nvidia[0-9]*"))))
