"""What departures of PFLlib's code do to accuracies on digits.

``python -m bench.released_accuracy`` trains methods beside what PFLlib's code makes of them, on the
data and the CNN of the quickstart, which has batch normalisation: eight clients, twenty rounds,
three seeds. It prints the result table.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

import fl
from fl.api import BuildContext, Method, declare, recipe, weights_in


@declare("personal")
class LocalStatistics:
    """FedAvg whose running statistics of batch normalisation stay with the clients."""

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of parameters alone."""
        return recipe(context, local=weights_in(frozenset(context.network.names["buffers"])))


METHODS: dict[str, Any] = {
    "fedavg": None,
    "fedavg.local-statistics": {"method": LocalStatistics},
    "fedamp": None,
    "fedamp.no-gradient": {"method": "local"},
    "fedrep": None,
    "fedrep.statistics-of-both": {"method": "fedrep", "statistics": "both"},
    "pfedme": {"method": "pfedme", "inner_lr": 0.05},
    "pfedme.overwritten": {"method": "pfedme", "inner_lr": 0.05, "scored": "w"},
}


def main() -> None:
    """Train and print."""
    os.chdir(tempfile.mkdtemp())
    result = fl.run(
        dataset="digits",
        partition={"dirichlet": {"clients": 8, "alpha": 0.3}},
        model="cnn",
        methods=METHODS,
        rounds=20,
        local_epochs=1,
        batch_size=16,
        lr=0.05,
        seeds=3,
    )
    print(result.table())


if __name__ == "__main__":
    main()
