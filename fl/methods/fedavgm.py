"""FedAvgM: the server moves along a running mean of the clients' mean change.

Hsu, Qi, Brown. Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification. 2019. arXiv:1909.06335.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fl.api import trees
from fl.api.method import Averaging, Method, Setting
from fl.api.recipe import recipe
from fl.api.task import ANY
from fl.api.trees import Tree
from fl.base.fields import Positive, Share
from fl.base.schema import GLOBAL
from fl.parts.sending import all_but


@dataclass(frozen=True)
class FedAvgM:
    """beta: server momentum; eta: the server's learning rate (1 in the paper)."""

    beta: Share = 0.9
    eta: Positive = 1.0

    stages: ClassVar = (GLOBAL,)
    tasks: ClassVar = ANY
    modalities: ClassVar = True

    def build(self, setting: Setting) -> Method:
        """v <- beta v + (w - mean_k w_k);  w <- w - eta v."""
        base = recipe(setting)

        def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            server, client = base.init(variables)
            return {**server, "velocity": trees.zeros_like(variables["params"])}, client

        def aggregate(
            server: Tree, clients: Tree, uploads: Tree, n: Tensor
        ) -> tuple[dict[str, Any], dict[str, Any]]:
            mean, kept = base.aggregate(server, clients, uploads, n)
            velocity = trees.apply(
                lambda v, w, m: self.beta * v + (w - m),
                *(server["velocity"], server["params"], mean["params"]),
            )
            params = trees.apply(lambda w, v: w - self.eta * v, server["params"], velocity)
            return {**mean, "params": params, "velocity": velocity}, kept

        return replace(base, init=init, aggregate=Averaging(aggregate), send=all_but("velocity"))
