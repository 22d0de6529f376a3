"""Slow: FedAvg that takes a second a round until there is a file.

Nobody's.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fl.api.method import BuildContext, Method
from fl.api.recipes import recipe
from fl.base.schema import GLOBAL


@dataclass(frozen=True)
class Slow:
    """until: the file's name."""

    until: str

    stages: ClassVar = (GLOBAL,)

    def build(self, context: BuildContext) -> Method:
        """FedAvg, and a pause before the server's part."""
        method = recipe(context)

        def aggregate(
            server: Mapping[str, Any], clients: Any, uploads: Any, n: Tensor
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            if not Path(self.until).exists():
                time.sleep(1.0)
            return method.aggregate(server, clients, uploads, n)

        return replace(method, aggregate=aggregate)
