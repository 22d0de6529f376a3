"""The model as it begins, which nobody trains: a stored one from a file, or one that knows nothing.

No paper's: what other entries start from (``start: untrained``) where a model brings weights of its
own, such as ``resnet18: {weights: imagenet}``, and the score of that model as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from fl.api.method import Method, Setting
from fl.api.recipe import everything, select, shared
from fl.api.task import ANY
from fl.api.trees import Tree
from fl.base.schema import GLOBAL


@dataclass(frozen=True)
class Untrained:
    """It has no hyper-parameters."""

    stages: ClassVar = (GLOBAL,)
    tasks: ClassVar = ANY
    training: ClassVar[dict[str, Any]] = {"rounds": 1, "local_epochs": 1}

    def build(self, setting: Setting) -> Method:
        """No pass at all."""

        def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            return select(variables, everything), {}

        def aggregate(
            server: Tree, clients: Tree, uploads: Tree, n: Tensor
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            return dict(server), dict(clients)

        return Method(init, (), aggregate, {GLOBAL: shared})
