"""Compare three rounds of methods with the code that others released.

    python -m bench.released_rounds FOLDER [--only METHOD ...] [--sizes]

FOLDER has a clone of PFLlib, by its name on GitHub, at the commit that `pfllib.COMMIT` names. Its
code runs with all your rights. With ``--sizes``, each line is followed by how far the models are
apart when one departure of the released code is left in, and when all are.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench.released_rounds.comparisons import COMPARISONS
from bench.released_rounds.differences import Trial
from bench.released_rounds.pfllib import check_commit
from fl.base.errors import DataError


def main() -> None:
    """Print the largest difference of each method and network."""
    parser = argparse.ArgumentParser("python -m bench.released_rounds", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=COMPARISONS, help="methods (default: all)")
    parser.add_argument("--sizes", action="store_true", help="each departure alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    repository = asked.folder / "PFLlib"
    try:
        check_commit(repository)
    except DataError as error:
        parser.exit(1, f"error: {error}\n")
    for name in asked.only or COMPARISONS:
        comparison = COMPARISONS[name]
        for network in comparison.networks:
            trial = Trial(comparison, network)
            difference = trial.difference(repository, comparison.departures)
            moved = f"weights move by {trial.movement():.2g}"
            print(f"{name}, {network}: {difference:.1e} ({moved})", flush=True)
            for reason, size in trial.sizes(repository) if asked.sizes else ():
                print(f"  {size:.1e}: {reason}", flush=True)


if __name__ == "__main__":
    main()
