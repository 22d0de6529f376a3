"""FedAvg that stays in a round for as long as a file is there: jobs to interrupt at leisure.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks
from Decentralized Data. AISTATS 2017. arXiv:1602.05629.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fl.api.method import BuildContext, Method, WeightedAverage
from fl.api.recipes import recipe
from fl.api.trees import Tree
from fl.base.schema import GLOBAL

HOLD = Path("hold")
"""The file, in the folder that the job runs in."""

HOLDING = Path("holding")
"""Is there once a process has waited."""


@dataclass(frozen=True)
class Held:
    """free: how many rounds a process does before it looks for the file."""

    free: int = 5

    stages: ClassVar = (GLOBAL,)

    def build(self, context: BuildContext) -> Method:
        """FedAvg, whose server waits before it aggregates."""
        base, calls = recipe(context), itertools.count()

        def aggregate(
            server: Tree, clients: Tree, uploads: Tree, n: Tensor
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            if next(calls) >= self.free:
                while HOLD.exists():
                    HOLDING.touch()
                    time.sleep(0.01)
            return base.aggregate(server, clients, uploads, n)

        return replace(base, aggregate=WeightedAverage(aggregate))
