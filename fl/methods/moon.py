"""MOON: features are pulled to those of the shared model and pushed from those of the last one.

Li, He, Song. Model-Contrastive Federated Learning. CVPR 2021. arXiv:2103.16257.

The contrast is over what goes into the classifier; the projection head that the paper puts before
the classifier is a key of models (``projection: 256``). In a client's first round, its last model
is the initial one. The values of ``second`` are the paper's alternatives to the contrast (its table
6).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fl.api import (
    Method,
    NonNegative,
    Positive,
    Setting,
    Tree,
    cross_entropy,
    declare,
    only,
    recipe,
)
from fl.parts.contrast import model_contrast, model_distance


@declare("global", modalities=True)
class MOON:
    """mu: weight of the second term (equation 4; the paper's best: 1 to 10).
    tau: the contrast's temperature.
    second: that term: `contrast`, the `squared` distance to the features of the shared model, or
        `none`, which is FedAvg.
    """

    mu: NonNegative = 1.0
    tau: Positive = 0.5
    second: Literal["contrast", "squared", "none"] = "contrast"

    def build(self, setting: Setting) -> Method:
        """FedAvg with one more term; a client keeps the model that it sent last."""
        if self.second == "none":
            return recipe(setting)
        if self.second == "squared":
            return recipe(setting, terms=(cross_entropy, model_distance(self.mu)))
        base = recipe(setting, terms=(cross_entropy, model_contrast(self.mu, self.tau, "previous")))
        local = only(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            return server, {**client, "previous": variables}

        def begin(server: Tree, client: Tree) -> Tree:
            return {**local.begin(server, client), "previous": client["previous"]}

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client, upload = local.end(server, client, work)
            return {**client, "previous": upload}, upload

        return replace(base, init=init, passes=(replace(local, begin=begin, end=end),))
