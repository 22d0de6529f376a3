"""MOON: features are pulled to those of the shared model and pushed from those of the last one.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. arXiv:2103.16257.

The contrast is over what goes into the classifier; the paper puts a projection head before it,
which is a matter of the model here. In a client's first round its last model is the initial one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fl.fields import NonNegative, Positive
from fl.method import Method, Setting, only
from fl.parts.contrast import model_contrast
from fl.parts.losses import cross_entropy
from fl.recipe import recipe
from fl.schema import GLOBAL
from fl.trees import Tree


@dataclass(frozen=True)
class MOON:
    """mu: weight of the contrast (equation 4; the paper's best: 1 to 10); tau: its temperature."""

    mu: NonNegative = 1.0
    tau: Positive = 0.5

    stages: ClassVar = (GLOBAL,)
    modalities: ClassVar = True

    def build(self, setting: Setting) -> Method:
        """FedAvg with one more term; a client keeps the model that it sent last."""
        base = recipe(setting, terms=(cross_entropy, model_contrast(self.mu, self.tau, "previous")))
        local = only(base)

        def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            server, client = base.init(variables)
            return server, {**client, "previous": variables}

        def begin(server: Tree, client: Tree) -> dict[str, Any]:
            return {**local.begin(server, client), "previous": client["previous"]}

        def end(server: Tree, client: Tree, work: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
            client, upload = local.end(server, client, work)
            return {**client, "previous": upload}, upload

        return replace(base, init=init, passes=(replace(local, begin=begin, end=end),))
