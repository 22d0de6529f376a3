"""Hungry: FedAvg that holds much memory for a while before it begins.

Nobody's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fl.api.method import BuildContext, Method
from fl.api.recipes import recipe
from fl.base.fields import Count
from fl.base.schema import GLOBAL


@dataclass(frozen=True)
class Hungry:
    """megabytes: how much it holds."""

    megabytes: Count

    stages: ClassVar = (GLOBAL,)

    def build(self, context: BuildContext) -> Method:
        """FedAvg, after a meal that takes long enough to be seen by who counts."""
        method = recipe(context)

        def init(variables: Any) -> Any:
            held = torch.ones(self.megabytes, 1 << 20, dtype=torch.uint8)
            time.sleep(5.0)
            assert held[-1, -1] == 1
            return method.init(variables)

        return replace(method, init=init)
