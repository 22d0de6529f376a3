"""FedProx: FedAvg whose clients are held near the shared model by a proximal term.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys
2020. arXiv:1812.06127.

Family: drift. Exchanged: model. Local: nothing. Key: `mu`.

As in the paper's experiments, clients are drawn uniformly and weighted by their samples. Clients
that do only a part of their work are a setting of training (``stragglers``). With ``adapt``, the
server adapts mu, one number for all, before each round to the training loss of the shared model: up
when it rises, down after it fell in some rounds in a row (the paper: both by .1, five rounds, from
0, or from 1 for IID data). The loss is that of the round's clients, which are asked for it in a
phase of its own; in the paper it is over all devices.

With ``dissimilarity``, the traces ``variance`` and ``dissimilarity`` have what the paper plots
below its losses and calls B, of the model with which each evaluated round began, over all devices'
training samples; the analysis `dissimilarity` draws them. With mu 0 they are FedAvg's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Forward,
    Method,
    NonNegative,
    Phase,
    Positive,
    RecipeClient,
    RecipeServer,
    Tree,
    Variables,
    WeightedAverage,
    declare,
    recipe,
    task_loss,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.gradient_dissimilarity import with_dissimilarity
from fl.blocks.proximal import ProximalTerm
from fl.blocks.shared_loss import shared_loss_sweep


class Penalty(TypedDict):
    """State of the server by which it adapts mu; all but ``mu`` stays on the server.

    Attributes:
        mu: Weight of the proximal term, [].
        loss: Mean training loss at the begin of the last round, [].
        falls: Number of successive rounds in which it fell, [].
        rounds: Number of rounds so far, [].
    """

    mu: Tensor
    loss: Tensor
    falls: Tensor
    rounds: Tensor


class AdaptiveServer(RecipeServer, Penalty):
    """State of the server, with `adapt`."""


class LossUpload(TypedDict):
    """Upload of a client before the round.

    Attributes:
        loss: Its training loss, [].
    """

    loss: Tensor


@declare("global", tasks="any", modalities=True)
class FedProx:
    """FedAvg with a proximal term.

    Attributes:
        mu: Weight of the proximal term (mu/2) ||w - w^t||^2, equation 2; 0 is FedAvg.
        adapt: Whether the server adapts mu; the key mu is then its first value.
        step: Change of mu in one adaptation.
        patience: Number of successive rounds with a falling loss after which mu decreases.
        dissimilarity: Whether the dissimilarity of clients' gradients is measured.
    """

    mu: NonNegative = 0.01
    adapt: bool = False
    step: Positive = 0.1
    patience: Count = 5
    dissimilarity: bool = False

    def build(self, context: BuildContext) -> Method:
        """FedAvg with one more loss term."""
        plain = recipe(context, terms=(task_loss, ProximalTerm(self.mu)))
        method = self._adapting(context) if self.adapt else plain
        return with_dissimilarity(method, context) if self.dissimilarity else method

    def _adapting(self, context: BuildContext) -> Method:
        """With a phase before each round in which mu is adapted."""
        base = recipe(context, terms=(task_loss, adaptive_proximal_term))

        def init(variables: Variables) -> tuple[AdaptiveServer, RecipeClient]:
            server, client = base.init(variables)
            zero = trees.leaves(variables["params"])[0].new_zeros(())
            penalty: Penalty = {"mu": zero + self.mu, "loss": zero, "falls": zero, "rounds": zero}
            return {**server, **penalty}, client

        def loss_alone(server: Variables, client: Tree, upload: Tree, loss: Tensor) -> LossUpload:
            return {"loss": loss}

        def adapt(
            server: AdaptiveServer, clients: RecipeClient, uploads: LossUpload, n: Tensor
        ) -> tuple[AdaptiveServer, RecipeClient]:
            loss = trees.mean(uploads, n)["loss"]
            return {**server, **self.adapted(server, loss)}, clients

        measured = Phase(
            (shared_loss_sweep(context, loss_alone),),
            WeightedAverage(adapt),
            send=send_all_but("loss", "falls", "rounds", "mu"),
        )
        return replace(
            base,
            init=init,
            earlier_phases=(measured,),
            send=send_all_but("loss", "falls", "rounds"),
            trace=lambda server: {"mu": server["mu"]},
        )

    def adapted(self, state: Penalty, loss: Tensor) -> Penalty:
        """Return the state after a round that began with that training loss, []."""
        has_previous = state["rounds"] > 0
        rose, fell = has_previous & (loss > state["loss"]), has_previous & (loss < state["loss"])
        falls = (state["falls"] + 1) * fell
        down = falls >= self.patience
        mu = state["mu"] + self.step * rose.to(loss.dtype) - self.step * down.to(loss.dtype)
        return {
            "mu": mu.clamp(min=0),
            "loss": loss,
            "falls": torch.where(down, 0, falls).to(loss.dtype),
            "rounds": state["rounds"] + 1,
        }


def adaptive_proximal_term(forward: Forward) -> Tensor:
    """`fl.blocks.proximal.ProximalTerm`, with the ``mu`` that the server sent."""
    server: AdaptiveServer = forward.server
    return ProximalTerm(1.0)(forward) * server["mu"]
