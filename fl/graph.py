"""What the graph must be told about the store, before Snakemake looks at files and their times.

The store is the truth about runs. A *marker* says that all runs of a bundle are in it, so that
Snakemake, which knows files only, can go by it. Markers are brought in line with the store and
tables of another plan are removed whenever the workflow is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fl.store import Store
from fl.tables import read_plan_hash


def marker(results: Path, bundle: str) -> Path:
    """Where the marker of a bundle stands."""
    return results / "markers" / bundle


def settle(plan: Mapping[str, Any]) -> None:
    """Bring markers, tables and reports in line with the store and with the plan.

    A bundle whose runs are all there (with the weights that later stages need) gets its marker, any
    other loses it. Tables that were made for another plan, or without all runs, are removed, and
    with them the report.
    """
    settings = plan["settings"]
    results, store = Path(settings["results"]), Store(Path(settings["store"]))
    for name, bundle in plan["bundles"].items():
        whole = all(
            (store.has_weights if run in bundle["keep_weights"] else store.has)(run)
            for run in bundle["runs"]
        )
        path = marker(results, name)
        if whole and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        elif not whole:
            path.unlink(missing_ok=True)
    for name, study in plan["studies"].items():
        tables = results / "tables" / f"{name}.parquet"
        if tables.exists() and read_plan_hash(tables) != (study["hash"], True):
            tables.unlink()
            (results / "report" / f"{name}.html").unlink(missing_ok=True)
