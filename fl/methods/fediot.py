"""FedIoT: autoencoders without labels on the clients, a classifier with labels on the server.

Zhao, Barnaghi, Haddadi. Multimodal Federated Learning on IoT Data. IoTDI 2022. arXiv:2109.04833.

Family: server samples. Exchanged: encoder, decoder. Local: nothing. Key: `server_epochs`.

Clients train everything before the classifier as an encoder, with a decoder (`fl.blocks.decoder`)
of what they hold, and never look at labels. The server averages both by numbers of samples and then
trains the classifier on samples of its own (a partition's ``server``), whose features the averaged
encoder gives in evaluation mode; it goes on from the classifier of the last round. As in the
released code the classifier is one linear layer, and an optimizer starts afresh in each round; it
is the run's, as is its rate, where the code has Adam with a rate of its own.

The paper's encoders and decoders are LSTMs over sensors; here the encoder is the study's model.
Where clients differ in modality, each modality has an encoder and a classifier of its own, so that
a model is to have nothing in common between them. Clients that hold several inputs of a sample
reconstruct all of them from the features of all: the paper's split autoencoders do so from those of
one input in turn, and its weight of 100 for such clients has no part here, where all are alike.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fl.api import (
    PERSONAL_PARAMS,
    Batch,
    BuildContext,
    Count,
    Method,
    Pass,
    Rate,
    Sampling,
    TrainingPass,
    Tree,
    WeightedAverage,
    declare,
    optimizer,
    recipe,
    select,
    shared,
    single_pass,
    trees,
    weights_not_in,
)
from fl.blocks.decoder import initial_decoders, reconstruction_term
from fl.blocks.exchange import send_all_but

DECODERS = "decoders"


@declare("global", needs=("server",))
class FedIoT:
    """Autoencoders of several modalities with a classifier on the server.

    Attributes:
        server_epochs: Epochs over the server's samples in each round.
        width: Width between the two layers of a decoder.
    """

    server_epochs: Count = 5
    width: Count = 256

    def build(self, context: BuildContext) -> Method:
        """FedAvg of autoencoders; ``aggregate`` trains the classifier."""
        body, training = (
            weights_not_in(context.network.head),
            head_pass(context, self.server_epochs),
        )
        base = recipe(
            context,
            terms=(reconstruction_term(context),),
            passes=(TrainingPass(body),),
            personal_params=lambda variables: initial_decoders(
                context, self.width, variables["params"]
            ),
        )
        local = single_pass(base)

        def init(variables: Tree) -> tuple[Tree, Tree]:
            server, client = base.init(variables)
            number = torch.zeros((), dtype=torch.int64)
            client_state = send_all_but(PERSONAL_PARAMS)(client)
            return {**server, DECODERS: client[PERSONAL_PARAMS], "round": number}, client_state

        def begin(server: Tree, client: Tree) -> Tree:
            return local.begin(server, {**client, PERSONAL_PARAMS: server[DECODERS]})

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            client_state, upload = local.end(server, client, work)
            return send_all_but(PERSONAL_PARAMS)(client_state), {
                **select(upload, body),
                DECODERS: client_state[PERSONAL_PARAMS],
            }

        def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
            assert context.server_training is not None
            number = server["round"] + 1
            averaged = trees.overlay(server, trees.mean(uploads, n))
            trained = context.server_training(training, shared(averaged, None), int(number))
            return {**averaged, **trained, "round": number}, dict(clients)

        return replace(
            base,
            init=init,
            passes=(replace(local, begin=begin, end=end),),
            aggregate=WeightedAverage(aggregate),
            views={"global": shared},
            send=send_all_but("round"),
        )


def head_pass(context: BuildContext, epochs: int) -> Pass:
    """Pass for `BuildContext.server_training`, over a tree of ``params`` and ``buffers``.

    The body is in evaluation mode. The optimizer is the run's and starts afresh.
    """
    network, steps = context.network, optimizer(context.training)

    def begin(server: Tree, client: Tree) -> Tree:
        params = client["params"]
        head = {name: leaf for name, leaf in params.items() if name in network.head}
        body = {name: leaf for name, leaf in params.items() if name not in network.head}
        work = {"params": head, "frozen": body, "buffers": client["buffers"]}
        return {**work, "optimizer": steps.init(head)}

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        params = {**work["frozen"], **work["params"]}
        outputs = network.eval(params, work["buffers"], batch["x"]).outputs
        return context.task.loss(outputs, batch), {}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        params, state = steps.step(work["params"], grads, work["optimizer"], lr)
        return {**work, "params": params, "optimizer": state}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        return {**client, "params": {**client["params"], **work["params"]}}, {}

    return Pass(begin, loss, update, end, Sampling(epochs=epochs))
