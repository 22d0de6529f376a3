"""MR-MTL: every client trains its own model, held near the mean of all of them.

Liu, Hu, Wu, Smith. On Privacy and Personalization in Cross-Silo Federated Learning. NeurIPS 2022.
arXiv:2206.07902.

Family: personal model. Exchanged: model. Local: model. Key: `lam`.

The paper's noise for privacy is left out. The optimizer's state outlives a round, as the model
does.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    MeanBased,
    Method,
    NonNegative,
    Pass,
    RecipeClient,
    RecipeWork,
    Variables,
    all_weights,
    declare,
    recipe,
    select,
    shared_model,
    single_pass,
    task_loss,
)
from fl.blocks.proximal import ProximalTerm


@declare("global", "personal", title="MR-MTL", tasks="any")
class MRMTL:
    """Personal models that stay near their mean.

    Attributes:
        lam: Lambda of the penalty (lambda/2) ||w_k - mean_j w_j||^2 (equation 4); 0 is Local.
    """

    lam: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Local under a proximal term to the server's tree, which is the mean of what is sent."""
        terms = (task_loss, ProximalTerm(self.lam))
        base = recipe(context, terms=terms, local=all_weights, keep_optimizer=True)
        local: Pass = single_pass(base)

        def init(variables: Variables) -> tuple[Variables, RecipeClient]:
            return select(variables, all_weights), base.init(variables)[1]

        def end(
            server: Variables, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, Variables]:
            client, _ = local.end(server, client, work)
            return client, select(client, all_weights)

        def aggregate(
            server: Variables, clients: RecipeClient, uploads: Variables, n: Tensor
        ) -> tuple[Variables, RecipeClient]:
            return base.aggregate(server, clients, uploads, torch.ones_like(n))

        views = {"global": shared_model, **base.views}
        return Method(init, (replace(local, end=end),), MeanBased(aggregate), views)
