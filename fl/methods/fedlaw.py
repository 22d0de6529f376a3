"""FedLAW: the server learns the weights of its mean, and how much it shrinks, on its own samples.

Li, Lin, Shang, Wu. Revisiting Weighted Aggregation in Federated Learning with Neural Networks. ICML
2023. arXiv:2302.10911.

Family: server samples. Exchanged: model. Local: nothing. Key: `server_lr`.

A partition gives the server its labelled samples (``server``). As in the authors' code
(ZexiLee/ICML-2023-FedLAW, 47f7a72), gamma is exp(g) and the weights are softmax(s), which begin at
1 and at the clients' shares of the samples in every round; Adam with betas .5 and .999 trains g and
s, with the network in training mode. Running statistics of batch normalisation begin with the
clients' mean in every round, and move as g and s are trained; in that code they are the server's
alone. That code halves the rate after 20 epochs; here it is constant. Its squares in place of
exponentials, and its training of s before g, are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Method,
    NonNegative,
    Pass,
    Rate,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    Sampling,
    Tree,
    Variables,
    Weights,
    adamw,
    declare,
    recipe,
    trees,
)
from fl.blocks.exchange import send_all_but


class FedLAWServer(RecipeServer):
    """State of the server; what it adds stays on the server.

    Attributes:
        gamma: Factor gamma of the last mean, [].
        round: Number of finished rounds, int64 [].
    """

    gamma: Tensor
    round: Tensor


class UploadedModels(TypedDict):
    """State with which the server's pass begins.

    Attributes:
        models: Parameters of the round's clients, stacked: leaves [K, ...].
        buffers: Their mean buffers, by name.
        samples: Their numbers of training samples, [K].
    """

    models: Weights
    buffers: Weights
    samples: Tensor


class LearningWork(UploadedModels):
    """State of the server's pass.

    Attributes:
        params: ``g``, the logarithm of gamma, [], and ``s``, whose softmax is lambda, [K].
        optimizer: State of Adam.
    """

    params: Weights
    optimizer: Tree


class WeightedModel(Variables):
    """State with which the server's pass ends.

    Attributes:
        gamma: As in `FedLAWServer`.
    """

    gamma: Tensor


@declare("global", title="FedLAW", needs=("server",))
class FedLAW:
    """FedAvg with learned weights of clients.

    Attributes:
        server_epochs: Epochs over the server's samples in each round.
        server_lr: Learning rate of the server (the authors: .01 or .005, by data set); 0 is FedAvg,
            but for running statistics.
    """

    server_epochs: Count = 20
    server_lr: NonNegative = 0.01

    def build(self, context: BuildContext) -> Method:
        """W <- gamma sum_k lambda_k w_k, with gamma and lambda from `weights_pass`."""
        base = recipe(context)
        learning = weights_pass(context, self.server_epochs, self.server_lr)

        def init(variables: Variables) -> tuple[FedLAWServer, RecipeClient]:
            server, client = base.init(variables)
            gamma = torch.ones_like(trees.leaves(variables["params"])[0].sum())
            return {**server, "gamma": gamma, "round": torch.zeros((), dtype=torch.int64)}, client

        def aggregate(
            server: FedLAWServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
        ) -> tuple[FedLAWServer, RecipeClient]:
            assert context.server_training is not None
            number = server["round"] + 1
            learner: UploadedModels = {
                "models": uploads["params"],
                "buffers": trees.mean(uploads["buffers"], n),
                "samples": n,
            }
            model: WeightedModel = context.server_training(learning, learner, int(number))
            return {**server, **model, "round": number}, clients

        return replace(
            base,
            init=init,
            aggregate=aggregate,
            send=send_all_but("gamma", "round"),
            trace=lambda server: {"gamma": server["gamma"]},
        )


def weights_pass(context: BuildContext, epochs: int, rate: float) -> Pass:
    """Return the server's pass from `UploadedModels` to `WeightedModel`.

    Args:
        context: The context in which the method is built.
        epochs: Epochs over the server's samples.
        rate: Learning rate.
    """
    network, adam = context.network, adamw(betas=(0.5, 0.999))

    def begin(server: object, client: UploadedModels) -> LearningWork:
        example = trees.leaves(client["models"])[0]
        shares = client["samples"].to(example.dtype) / client["samples"].sum()
        params: Weights = {"g": torch.zeros_like(example.sum()), "s": shares.log()}
        return {**client, "params": params, "optimizer": adam.init(params)}

    def loss(server: object, work: LearningWork, batch: Batch) -> tuple[Tensor, Tree]:
        output = network.train(mixture(work), work["buffers"], batch["x"], key=batch.get("key"))
        return context.task.loss(output.outputs, batch), {"buffers": output.buffers}

    def update(
        server: object, work: LearningWork, grads: Tree, aux: Tree, lr: Rate
    ) -> LearningWork:
        params, state = adam.step(work["params"], grads, work["optimizer"], rate + 0 * lr)
        return {**work, "params": params, "optimizer": state, "buffers": aux["buffers"]}

    return Pass(begin, loss, update, end_learning, Sampling(epochs=epochs))


def end_learning(
    server: object, client: UploadedModels, work: LearningWork
) -> tuple[WeightedModel, Tree]:
    """Return the mixture, the statistics and gamma."""
    gamma = work["params"]["g"].exp()
    return {"params": mixture(work), "buffers": work["buffers"], "gamma": gamma}, {}


def mixture(work: LearningWork) -> Weights:
    """Return gamma sum_k lambda_k w_k."""
    weights = work["params"]["g"].exp() * work["params"]["s"].softmax(0)
    return trees.apply(lambda w: torch.tensordot(weights.to(w), w, dims=1), work["models"])
