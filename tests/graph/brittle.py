"""Brittle: FedAvg that fails in seed 1 as long as there is a file named broken.

Nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from fl.api.method import BuildContext, Method
from fl.api.recipes import recipe
from fl.base import rng
from fl.base.schema import GLOBAL


@dataclass(frozen=True)
class Brittle:
    """No hyper-parameters."""

    stages: ClassVar = (GLOBAL,)

    def build(self, context: BuildContext) -> Method:
        """FedAvg, but for one seed, which is known by its first weights."""
        method = recipe(context)
        lucky, unlucky = (
            context.network.init(rng.torch_seed(seed, "init"))["params"] for seed in (0, 1)
        )

        def init(variables: Any) -> Any:
            same, other = (
                all(torch.equal(known[name], w) for name, w in variables["params"].items())
                for known in (unlucky, lucky)
            )
            # In a rehearsal the weights of all seeds are the same.
            if same and not other and Path("broken").exists():
                raise RuntimeError("this seed has no luck")
            return method.init(variables)

        return replace(method, init=init)
