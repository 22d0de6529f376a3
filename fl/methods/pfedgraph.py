"""pFedGraph: every client gets a mixture of all models, by a collaboration graph that is inferred.

Ye, Ni, Wu, Chen, Wang. Personalized Federated Learning with Inferred Collaboration Graphs. ICML
2023. PMLR 202.

Family: mixture of clients. Exchanged: model. Local: model. Key: `lam`.

As in the released code, similarities are cosines of what each model has moved from the common
initialisation, over all parameters, and one above 0.9 counts as 1. A client is evaluated with the
model that it trained, before it is mixed.

By default the client's regulariser holds it near its mixture, from which it goes on; in round 1
that is the initial model. The released code sums over all models, has no regulariser in round 1,
when there are none, and has the opposite sign, so that it drives models apart where the paper lets
them attract each other.

The collaboration graph of every evaluated round is kept as the trace ``cooperation`` where there
are at most 200 clients: row i has the weights of client i's mixture, zeros if it took no part.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Method,
    NonNegative,
    Positive,
    Share,
    Variables,
    declare,
    rng,
    trees,
)
from fl.blocks.mixing import IDENTICAL_COSINE, cosines, pfedgraph_weights, saturate_above
from fl.blocks.model_mixtures import (
    WEIGHTS,
    MixtureClient,
    MixtureServer,
    Regulariser,
    mixture_method,
)


@declare("personal", title="pFedGraph", tasks="any")
class PFedGraph:
    """Personal mixtures of models by a learnt graph.

    Attributes:
        lam: Weight of the server's graph objective; large values are close to FedAvg.
        mu: Weight of the client's regulariser.
        regulariser: Loss of a client, with graph W and models theta_j of the last round. `mixture`:
            f(w) - mu cos(w, sum_j W_ij theta_j), with the received mixture. `models`: f(w) - mu
            sum_j W_ij cos(w, theta_j), and f(w) before the client was in a graph. `released`: the
            same with + mu, as in the released code.
        graph: Similarities of the graph: `inferred` from clients, or, as a control, `shuffled` over
            clients in every round.
        mixed: Share of the rounds after which models are mixed; in later rounds clients train
            alone, as in fine-tuning.
    """

    lam: Positive = 0.8
    mu: NonNegative = 0.01
    regulariser: Regulariser = "mixture"
    graph: Literal["inferred", "shuffled"] = "inferred"
    mixed: Share = 1.0

    def build(self, context: BuildContext) -> Method:
        """Local training, after every round of which the models are mixed."""

        def weigh(
            server: MixtureServer, clients: MixtureClient, uploads: Variables, n: Tensor
        ) -> dict[str, Tensor]:
            moved = trees.apply(torch.sub, uploads["params"], server["origin"])
            similarity = saturate_above(cosines(moved), IDENTICAL_COSINE)
            if self.graph == "shuffled":
                draw = rng.generator(context.seed, "shuffled graph", int(server["round"]))
                order = torch.from_numpy(draw.permutation(len(n))).to(n.device)
                similarity = similarity[order][:, order]
            return {WEIGHTS: pfedgraph_weights(n / n.sum(), similarity, self.lam)}

        return mixture_method(
            context, weigh, mu=self.mu, regulariser=self.regulariser, mixed_share=self.mixed
        )
