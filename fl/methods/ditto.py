"""Ditto: FedAvg, and beside it a model of each client's own that is held near the shared one.

Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML
2021. arXiv:2012.04221.

Family: personal model. Exchanged: model. Local: model. Key: `lam`.

Both models see the same batches and take as many steps. The optimizer's state outlives a round, as
in the reference implementation of FL4Health. Terms that a study adds hold the client's own model.

With ``shared: initial`` nobody trains the shared model and clients send nothing: a control, no
paper's, that tells being held near the others from being held at all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Pass,
    Recipe,
    RecipeClient,
    RecipeWork,
    Tree,
    Variables,
    all_weights,
    declare,
    recipe,
    select,
    shared_model,
    single_pass,
    task_loss,
)
from fl.blocks.exchange import aggregate_nothing
from fl.blocks.model_pair import shared_and_personal
from fl.blocks.proximal import ProximalTerm


@declare("global", "personal", tasks="any", modalities=True)
class Ditto:
    """A personal model that stays near the shared model.

    Attributes:
        lam: Lambda of the penalty (lambda/2) ||v_k - w||^2, equation 2; 0 is Local.
        shared: The model w: the `trained` shared model, or the `initial` model before round 1.
    """

    lam: NonNegative = 0.1
    shared: Literal["trained", "initial"] = "trained"

    def build(self, context: BuildContext) -> Method:
        """FedAvg paired with Local under a proximal term."""
        terms = (task_loss, ProximalTerm(self.lam)) if self.lam else (task_loss,)
        personal = recipe(context, terms=terms, local=all_weights, keep_optimizer=True)
        if self.shared == "initial":
            return local_method(personal)
        base = recipe(replace(context, terms=()), keep_optimizer=True)
        return shared_and_personal(base, personal)


def local_method(personal_method: Recipe) -> Method:
    """A method all of whose weights stay local; the server keeps the model that all began with."""
    local: Pass = single_pass(personal_method)

    def init(variables: Variables) -> tuple[Variables, RecipeClient]:
        return select(variables, all_weights), personal_method.init(variables)[1]

    def end(server: Variables, client: RecipeClient, work: RecipeWork) -> tuple[RecipeClient, Tree]:
        return local.end(server, client, work)[0], {}

    views = {"global": shared_model, **personal_method.views}
    return Method(init, (replace(local, end=end),), aggregate_nothing, views)
