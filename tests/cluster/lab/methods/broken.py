"""Broken: FedAvg that fails.

Nobody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fl.api.method import BuildContext, Method
from fl.api.recipes import recipe
from fl.base.schema import GLOBAL


@dataclass(frozen=True)
class Broken:
    """No hyper-parameters."""

    stages: ClassVar = (GLOBAL,)

    def build(self, context: BuildContext) -> Method:
        """A method that trains and cannot finish a round."""

        def aggregate(server: Any, clients: Any, uploads: Any, n: Any) -> Any:
            raise RuntimeError("this method has no luck")

        return replace(recipe(context), aggregate=aggregate)
