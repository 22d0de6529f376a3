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

from dataclasses import replace
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
        network = context.network
        base = recipe(context, local=weights_not_in(network.head))
        local: Pass = single_pass(base)

        def end(
            server: RecipeServer, client: RecipeClient, work: RecipeWork
        ) -> tuple[RecipeClient, Tree]:
            return local.end(server, client, work)[0], {}

        def trained_head(params: Weights, uploads: Anchors, steps: int) -> Weights:
            class_means, (labels, weight) = uploads["means"].flatten(0, 1), labels_of_means(uploads)

            def loss(head: Weights) -> Tensor:
                outputs = head_outputs(head_parameters(network, head), class_means)
                return classification_loss(outputs, {"y": labels, "weight": weight})

            return descend(params, loss, steps, self.server_lr)

        def aggregate(
            server: RecipeServer, clients: RecipeClient, uploads: FedGHUpload, n: Tensor
        ) -> tuple[RecipeServer, RecipeClient]:
            head = trained_head(server["params"], uploads["anchors"], self.server_steps)
            return {**server, "params": head}, clients

        def one_step(server: RecipeServer) -> Weights:
            weight = head_parameters(network, server["params"])["weight"]
            return trained_head(server["params"], empty_class_means(context, weight), 1)

        passes = (keep_trained_model(replace(local, end=end)), class_means_sweep(context))
        work = ServerWork(lambda round_: self.server_steps, one_step)
        return replace(base, passes=passes, aggregate=aggregate, server_work=(work,))
