"""FedGH: the server trains one head on class means of features that clients send.

Yi, Wang, Liu, Shi, Yu. FedGH: Heterogeneous Federated Learning with Generalized Global Header. ACM
MM 2023. arXiv:2303.13137.

Family: class means. Exchanged: up mean features by class, down the head. Local: body. Key:
`server_lr`.

Clients begin a round with the shared head and their own body, and train both; the head that comes
out is thrown away. Every class mean of every client is one sample of the server, however many
samples it is a mean of. The server takes all of them in each step; HtFLlib's code takes batches,
and PFLlib's takes one epoch at rate 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict

from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Method,
    Pass,
    Positive,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    ServerWork,
    Tree,
    Weights,
    classification_loss,
    declare,
    recipe,
    single_pass,
    weights_not_in,
)
from fl.blocks.anchor_exchange import class_means_sweep, keep_trained_model
from fl.blocks.anchors import Anchors
from fl.blocks.linear_layers import head_outputs, head_parameters
from fl.blocks.server_learning import descend, empty_class_means, labels_of_means


class FedGHUpload(TypedDict):
    """Upload of a client.

    Attributes:
        anchors: Its mean feature and number of samples by class.
    """

    anchors: Anchors


@declare("personal", title="FedGH")
class FedGH:
    """Bodies of clients' own below a head of the server's.

    Attributes:
        server_steps: Steps of the server in a round.
        server_lr: Learning rate of the server.
    """

    server_steps: Count = 100
    server_lr: Positive = 0.01

    def build(self, context: BuildContext) -> Method:
        """Return Local that begins rounds with the shared head and uploads class means."""
        base = recipe(context, local=weights_not_in(context.network.head))
        steps, local = FedGHSteps(self, context), single_pass(base)

        def end(
            server: RecipeServer, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, Tree]:
            return local.end(server, client, work)[0], {}

        training: Pass = local
        passes = (keep_trained_model(replace(training, end=end)), class_means_sweep(context))
        work = ServerWork(lambda round_: self.server_steps, steps.one_step)
        return replace(base, passes=passes, aggregate=steps.aggregate, server_work=(work,))


@dataclass(frozen=True, eq=False)
class FedGHSteps:
    """Functions of the server of FedGH.

    Attributes:
        options: The keys of the method.
        context: The context in which the method is built.
    """

    options: FedGH
    context: BuildContext

    def trained_head(self, params: Weights, uploads: Anchors, steps: int) -> Weights:
        """Return the head after some steps on the mean features of clients."""
        class_means, (labels, weight) = uploads["means"].flatten(0, 1), labels_of_means(uploads)

        def loss(head: Weights) -> Tensor:
            outputs = head_outputs(head_parameters(self.context.network, head), class_means)
            return classification_loss(outputs, {"y": labels, "weight": weight})

        return descend(params, loss, steps, self.options.server_lr)

    def aggregate(
        self, server: RecipeServer, clients: RecipeClient, uploads: FedGHUpload, n: Tensor
    ) -> tuple[RecipeServer, RecipeClient]:
        """Train the head."""
        head = self.trained_head(server["params"], uploads["anchors"], self.options.server_steps)
        return {**server, "params": head}, clients

    def one_step(self, server: RecipeServer) -> Weights:
        """Take a step of the head, for the costs of a run."""
        weight = head_parameters(self.context.network, server["params"])["weight"]
        return self.trained_head(server["params"], empty_class_means(self.context, weight), 1)
