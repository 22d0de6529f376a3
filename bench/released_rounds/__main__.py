"""Compare three rounds of methods with the code that others released.

    python -m bench.released_rounds FOLDER [--only METHOD ...]

FOLDER has a clone of each repository, by its name on GitHub, at the commit that is named in the
table. The code of a clone runs with all your rights.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from bench.released_rounds.comparisons import COMPARISONS
from bench.released_rounds.differences import largest_difference
from bench.released_rounds.population import NETWORKS


def main() -> None:
    """Print the largest difference of each method and network."""
    parser = argparse.ArgumentParser("python -m bench.released_rounds", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", choices=COMPARISONS, help="methods (default: all)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.only or COMPARISONS:
        for network in NETWORKS:
            difference = largest_difference(asked.folder / "PFLlib", COMPARISONS[name], network)
            print(f"{name}, {network}: {difference:.1e}", flush=True)


if __name__ == "__main__":
    main()
