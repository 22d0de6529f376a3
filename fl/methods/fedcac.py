"""FedCAC: clients share what does not matter to their task, and the rest with similar clients.

Wu, Liu, Niu, Zhu, Tang. Bold but Cautious: Unlocking the Potential of Personalized Federated
Learning through Cautiously Aggressive Collaboration. ICCV 2023. arXiv:2309.11103.

Family: mixture of clients. Exchanged: model, which weights are critical. Local: which weights are
critical. Key: `tau`.

A weight is critical to a client if |(w_k - w) w_k|, with what it moved in a round, is among the
largest of its tensor. A client begins with the shared model, but takes critical weights from the
mean over itself and its partners: clients with the same critical weights. Ever fewer are partners;
after round ``beta`` nobody is, even if all pairs overlap alike. Weights that did not move are not
critical. Running statistics are shared; in the authors' code (kxzxvbk/Fling, f6c6f1e) they are not.
A client that is not drawn keeps its critical weights and gets all others. The defaults are those of
that code for CIFAR-10.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Share,
    Variables,
    Weights,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.mixing import client_rows, mix

ROUNDING = 1e-9
"""Overlaps that differ by less count as equal."""


class FedCACServer(RecipeServer):
    """State of the server.

    Attributes:
        round: Number of finished rounds, int64 []; it stays on the server.
    """

    round: Tensor


class FedCACClient(RecipeClient):
    """State of a client; its ``payload`` has ``params``, the mean u_k of its partners.

    Attributes:
        critical: Masks M_k: which weights are critical, bool, by name.
    """

    critical: Weights


class FedCACUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        critical: As in `FedCACClient`.
    """

    critical: Weights


@declare("personal", title="FedCAC", tasks="any")
class FedCAC:
    """FedAvg, but for the weights that are critical to a client.

    Attributes:
        tau: Share of critical weights in each tensor; 0 is FedAvg.
        beta: Last round after which clients have partners.
    """

    tau: Share = 0.5
    beta: Count = 100

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg that starts from M_k u_k + (1 - M_k) w, with masks M and partners' mean u.

        Partners have an overlap O_ij >= mean O + (t / beta) (max O - mean O) in round t.
        """
        base = recipe(context)
        steps = FedCACSteps(self, base)
        return replace(
            base,
            init=steps.init,
            passes=(replace(single_pass(base), begin=steps.begin, end=steps.end),),
            aggregate=steps.aggregate,
            views={"personal": personal},
            send=send_all_but("round"),
        )

    def critical(self, start: Tensor, trained: Tensor) -> Tensor:
        """Whether each weight of a tensor is critical: the share tau that matters most."""
        sensitivity = ((trained - start) * trained).abs()
        count = int(self.tau * sensitivity.numel())
        largest = sensitivity.flatten().topk(max(count, 1)).values
        return (sensitivity >= largest[-1]) & (sensitivity > 0) & (count > 0)


@dataclass(frozen=True, eq=False)
class FedCACSteps:
    """Functions of FedCAC's pass, and what the server does.

    Attributes:
        options: The keys of the method.
        base: FedAvg.
    """

    options: FedCAC
    base: Recipe

    def init(self, variables: Variables) -> tuple[FedCACServer, FedCACClient]:
        """Return FedAvg's states; no weight is critical."""
        server, client = self.base.init(variables)
        params = variables["params"]
        masks = trees.apply(lambda w: torch.zeros_like(w, dtype=torch.bool), params)
        number = trees.leaves(params)[0].new_zeros((), dtype=torch.int64)
        client_state: FedCACClient = {
            **client,
            "critical": masks,
            "payload": {"params": params},
        }
        return {**server, "round": number}, client_state

    def begin(self, server: FedCACServer, client: FedCACClient) -> RecipeWork:
        """Begin training at the client's own model."""
        return single_pass(self.base).begin(personal(server, client), client)

    def end(
        self, server: FedCACServer, client: FedCACClient, work: RecipeWork
    ) -> tuple[FedCACClient, FedCACUpload]:
        """Find the weights that are critical to the client, and upload which they are."""
        start = personal(server, client)["params"]
        client, upload = single_pass(self.base).end(server, client, work)
        critical = trees.apply(self.options.critical, start, upload["params"])
        return {**client, "critical": critical}, {**upload, "critical": critical}

    def aggregate(
        self, server: FedCACServer, clients: FedCACClient, uploads: FedCACUpload, n: Tensor
    ) -> tuple[FedCACServer, FedCACClient]:
        """Average the models, over all clients and over each client's partners."""
        models = shared_model(uploads, None)
        next_server, clients = self.base.aggregate(server, clients, models, n)
        number = server["round"] + 1
        weights = partner_weights(client_rows(uploads["critical"]), int(number) / self.options.beta)
        partner_means = {"params": mix(weights, uploads["params"])}
        return {**next_server, "round": number}, {**clients, "payload": partner_means}


def personal(server: FedCACServer, client: FedCACClient) -> Variables:
    """Return M_k u_k + (1 - M_k) w, as a view."""
    params = trees.apply(
        torch.where, client["critical"], client["payload"]["params"], server["params"]
    )
    return {"params": params, "buffers": server["buffers"]}


def partner_weights(critical: Tensor, progress: float) -> Tensor:
    """Return the weights of all models in the mean of each client's partners, [K, K].

    Args:
        critical: Whether each weight is critical, 0 or 1, [K, d].
        progress: t / beta; above 1, nobody has partners.
    """
    itself = torch.eye(len(critical), dtype=torch.bool, device=critical.device)
    sizes = critical.sum(1)
    differences = sizes[:, None] + sizes - 2 * critical @ critical.T
    overlaps = 1 - differences / (2 * sizes.clamp(min=1))[:, None]
    is_pair = (sizes > 0)[:, None] & (sizes > 0) & ~itself
    if progress > 1 or not is_pair.any():
        return itself.to(critical.dtype)
    excess = overlaps - overlaps[is_pair].mean()
    is_partner = is_pair & (excess >= progress * excess[is_pair].max() - ROUNDING)
    return F.normalize((is_partner | itself).to(critical.dtype), p=1, dim=1)
