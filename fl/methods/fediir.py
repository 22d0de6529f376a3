"""FedIIR: clients keep the classifier's gradient of each batch near the mean of all clients.

Guo, Guo, Cao, Wu, Chang. Out-of-Distribution Generalization of Federated Learning via Implicit
Invariant Relationships. ICML 2023. PMLR 202.

Family: features. Exchanged: model, gradient of the head. Local: nothing. Key: `penalty`.

Before a round's training, its clients send the gradient of the classifier's weights at the shared
model, and the server renews a moving mean of it. In training, the squared distance of a batch's
gradient to that mean is added to the loss; it has a gradient of its own. As in the authors' code
(YamingGuo98/FedIIR, 3e7a785), the moving mean begins at 0. That code takes gradients of the mean in
training mode and means over batches, where here they are in evaluation mode and over samples; its
classifiers have up to three layers, while here the gradient is that of the last layer. It averages
models of clients alike, and gradients over all batches of all clients, so that a client counts in
the mean gradient by its batches. Here one key weighs both: by samples, or alike under
``weighting: uniform``, so that no value gives both rules unless clients have as many samples.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypedDict

from torch import Tensor
from torch.func import grad

from fl.api import (
    Batch,
    BuildContext,
    Forward,
    Method,
    NonNegative,
    Output,
    Phase,
    RecipeClient,
    RecipeServer,
    Share,
    Sweep,
    Task,
    Tree,
    Variables,
    WeightedAverage,
    Weights,
    declare,
    recipe,
    shared_model,
    task_loss,
    trees,
)
from fl.blocks.linear_layers import head_parameters, zero_head

Mean = TypedDict("Mean", {"mean gradient": Weights})
"""The moving mean g of the clients' gradients by the last layer's ``weight`` and ``bias``."""


class FedIIRServer(RecipeServer, Mean):
    """State of the server."""


@declare("global", title="FedIIR")
class FedIIR:
    """FedAvg with a penalty on differences between clients' gradients.

    Attributes:
        penalty: Weight of the squared distance (the authors: .0005 to .01, by data set); 0 is
            FedAvg.
        decay: Share of the former moving mean in the next one.
    """

    penalty: NonNegative = 1e-3
    decay: Share = 0.95

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg of CE + gamma ||grad_h CE - g||^2, after a phase that renews g."""
        base = recipe(context, terms=(task_loss, self.distance))

        def init(variables: Variables) -> tuple[FedIIRServer, RecipeClient]:
            server, client = base.init(variables)
            return {
                **server,
                "mean gradient": zero_head(context.network, variables["params"]),
            }, client

        def renew(
            server: FedIIRServer, clients: RecipeClient, uploads: Mean, n: Tensor
        ) -> tuple[FedIIRServer, RecipeClient]:
            mean = trees.apply(
                lambda old, new: self.decay * old + (1 - self.decay) * new,
                server["mean gradient"],
                trees.mean(uploads, n)["mean gradient"],
            )
            return {**server, "mean gradient": mean}, clients

        phase = Phase(
            (gradient_sweep(context),),
            WeightedAverage(renew),
            send=lambda server: shared_model(server, None),
        )
        return replace(base, init=init, earlier_phases=(phase,))

    def distance(self, forward: Forward) -> Tensor:
        """Return gamma ||grad_h CE - g||^2 over the weights h of the head."""
        slopes = head_gradient(forward.task, forward.output, forward.batch)
        server: FedIIRServer = forward.server
        mean = server["mean gradient"]
        return self.penalty * trees.squared_distance({k: slopes[k] for k in mean}, mean)


def gradient_sweep(context: BuildContext) -> Sweep:
    """Return a sweep after which a client uploads its mean gradient of the head."""
    network, task = context.network, context.task

    def look(server: Variables, client: Tree, upload: Tree, batch: Batch) -> Tree:
        output = network.eval(server["params"], server["buffers"], batch["x"])
        slopes, count = head_gradient(task, output, batch), batch["weight"].sum()
        names = head_parameters(network, server["params"])
        return {"count": count, "sum": {key: slopes[key] * count for key in names}}

    def send_mean(server: Variables, client: Tree, upload: Tree, totals: Tree) -> tuple[Tree, Mean]:
        count = totals["count"].clamp(min=1)
        return client, {"mean gradient": trees.apply(lambda g: g / count, totals["sum"])}

    return Sweep(look, send_mean)


def head_gradient(task: Task, output: Output, batch: Batch) -> dict[str, Tensor]:
    """Return the gradient of a batch's mean loss by the last layer's ``weight`` and ``bias``.

    With the gradient e_i of the loss by a sample's outputs and its features z_i, it is sum_i e_i
    z_i' and sum_i e_i.
    """
    slopes = grad(lambda outputs: task.loss(outputs, batch))(output.outputs)
    return {"weight": slopes.T @ output.features.flatten(1), "bias": slopes.sum(0)}
