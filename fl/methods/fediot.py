"""FedIoT: autoencoders without labels on the clients, a classifier with labels on the server.

Zhao, Barnaghi, Haddadi. Multimodal Federated Learning on IoT Data. IoTDI 2022. arXiv:2109.04833.

Family: server samples. Exchanged: encoder, decoder. Local: nothing. Key: `server_epochs`.

Clients train everything before the classifier as an encoder, with a decoder of what they hold, and
never look at labels. The server averages both by numbers of samples and then trains the classifier
on samples of its own (a partition's ``server``), whose features the averaged encoder gives in
evaluation mode; it goes on from the classifier of the last round. As in the released code the
classifier is one linear layer, and an optimizer starts afresh in each round; it is the run's, as is
its rate, where the code has Adam with a rate of its own.

The paper's encoders and decoders are LSTMs over sensors; here the encoder is the study's model.
Where clients differ in modality, each modality has an encoder and a classifier of its own, so that
a model is to have nothing in common between them. Clients that hold several inputs of a sample
reconstruct all of them from the features of all: the paper's split autoencoders do so from those of
one input in turn, and its weight of 100 for such clients has no part here, where all are alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.api import (
    Batch,
    BuildContext,
    Count,
    Forward,
    Method,
    Pass,
    Rate,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeUpload,
    RecipeWork,
    Sampling,
    Term,
    TrainingPass,
    Tree,
    Variables,
    WeightedAverage,
    Weights,
    declare,
    optimizer,
    recipe,
    rng,
    select,
    shared_model,
    single_pass,
    trees,
    weighted_mean,
    weights_not_in,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.linear_layers import feature_width, linear_parameters

SINGLE_INPUT = "x"
"""The name of the input of a model that has only one."""


class FedIoTServer(RecipeServer):
    """State of the server.

    Attributes:
        decoders: Decoder of each input of a sample, by the input's name: a tree.
        round: Number of rounds so far, int64 [].
    """

    decoders: Tree
    round: Tensor


class FedIoTUpload(RecipeUpload):
    """Upload of a client.

    Attributes:
        decoders: Its decoders, as in `FedIoTServer`.
    """

    decoders: Tree


class HeadWork(TypedDict):
    """State of the server's pass, which trains the classifier.

    Attributes:
        params: Parameters of the classifier, by name.
        frozen: All other parameters.
        buffers: Buffers by name.
        optimizer: State of the optimizer.
    """

    params: Weights
    frozen: Weights
    buffers: Weights
    optimizer: Tree


without_decoders = send_all_but("personal_params")


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
        body = weights_not_in(context.network.head)
        base = recipe(
            context,
            terms=(reconstruction_term(context),),
            passes=(TrainingPass(body),),
            personal_params=lambda variables: initial_decoders(
                context, self.width, variables["params"]
            ),
        )
        steps = FedIoTSteps(base, head_pass(context, self.server_epochs), context)
        method: Method = base
        return replace(
            method,
            init=steps.init,
            passes=(replace(single_pass(method), begin=steps.begin, end=steps.end),),
            aggregate=WeightedAverage(steps.aggregate),
            views={"global": shared_model},
            send=send_all_but("round"),
        )


@dataclass(frozen=True, eq=False)
class FedIoTSteps:
    """Functions of the pass of FedIoT, and what the server does.

    Attributes:
        base: FedAvg of encoders and decoders.
        head_training: The pass in which the server trains the classifier.
        context: The context in which the method is built.
    """

    base: Recipe
    head_training: Pass
    context: BuildContext

    def init(self, variables: Variables) -> tuple[FedIoTServer, Tree]:
        """Return FedAvg's states; the decoders are the server's."""
        server, client = self.base.init(variables)
        decoders, number = client["personal_params"], torch.zeros((), dtype=torch.int64)
        return {**server, "decoders": decoders, "round": number}, without_decoders(client)

    def begin(self, server: FedIoTServer, client: RecipeClient) -> RecipeWork:
        """Begin training at the server's decoders."""
        return single_pass(self.base).begin(
            server, {**client, "personal_params": server["decoders"]}
        )

    def end(
        self, server: FedIoTServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[Tree, FedIoTUpload]:
        """Upload encoder and decoders."""
        client, upload = single_pass(self.base).end(server, client, work)
        encoder = select(upload, weights_not_in(self.context.network.head))
        return without_decoders(client), {
            "params": encoder["params"],
            "buffers": encoder["buffers"],
            "decoders": client["personal_params"],
        }

    def aggregate(
        self, server: FedIoTServer, clients: RecipeClient, uploads: FedIoTUpload, n: Tensor
    ) -> tuple[Tree, RecipeClient]:
        """Average the uploads, and train the classifier on the server's samples."""
        assert self.context.server_training is not None
        number = server["round"] + 1
        next_server = trees.overlay(server, trees.mean(uploads, n))
        mean_model: Variables = {
            "params": next_server["params"],
            "buffers": next_server["buffers"],
        }
        model = self.context.server_training(self.head_training, mean_model, int(number))
        return {**next_server, **model, "round": number}, clients


def head_pass(context: BuildContext, epochs: int) -> Pass:
    """Return the pass in which the server trains the classifier of a model.

    The body is in evaluation mode. The optimizer is the run's and starts afresh.
    """
    network, steps = context.network, optimizer(context.training)

    def begin(server: Tree, model: Variables) -> HeadWork:
        params = model["params"]
        head = {name: leaf for name, leaf in params.items() if name in network.head}
        body = {name: leaf for name, leaf in params.items() if name not in network.head}
        state = steps.init(head)
        return {"params": head, "frozen": body, "buffers": model["buffers"], "optimizer": state}

    def loss(server: Tree, work: HeadWork, batch: Batch) -> tuple[Tensor, Tree]:
        params = {**work["frozen"], **work["params"]}
        outputs = network.eval(params, work["buffers"], batch["x"]).outputs
        return context.task.loss(outputs, batch), {}

    def update(server: Tree, work: HeadWork, grads: Weights, aux: Tree, lr: Rate) -> HeadWork:
        params, state = steps.step(work["params"], grads, work["optimizer"], lr)
        return {**work, "params": params, "optimizer": state}

    return Pass(begin, loss, update, end_head_pass, Sampling(epochs=epochs))


def end_head_pass(server: Tree, model: Variables, work: HeadWork) -> tuple[Variables, Tree]:
    """Return the model with the trained classifier."""
    return {**model, "params": {**model["params"], **work["params"]}}, {}


def input_shapes(context: BuildContext) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Return the shapes of a sample's inputs by name, and the names of inputs that are tokens."""
    if context.shapes:
        return dict(context.shapes), context.tokens
    return {SINGLE_INPUT: context.shape}, frozenset(
        [SINGLE_INPUT] if context.network.uses_tokens else []
    )


def initial_decoders(context: BuildContext, width: int, params: Weights) -> Tree:
    """Draw the initial weights of a decoder for each input, by the run's seed.

    A decoder reconstructs an input from the features that enter the classifier, by two linear
    layers with ReLU between them.

    Args:
        context: The context in which the method is built.
        width: The number of units between the two layers.
        params: The network's parameters.
    """
    network, example = context.network, trees.leaves(params)[0]
    shapes, tokens = input_shapes(context)
    vocabulary_sizes = [len(params[f"{name}.weight"]) for name in network.layers(nn.Embedding)]
    generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "decoders"))
    width_of_features = feature_width(network, params)
    return {
        name: {
            "hidden": linear_parameters(generator, example, width_of_features, width),
            "output": linear_parameters(
                generator, example, width, max(vocabulary_sizes) if name in tokens else prod(shape)
            ),
        }
        for name, shape in shapes.items()
    }


def reconstruction_term(context: BuildContext) -> Term:
    """Return a loss term: the reconstruction error of a client's decoders, summed over inputs."""
    tokens = input_shapes(context)[1]

    def term(forward: Forward) -> Tensor:
        features, x = forward.output.features.flatten(1), forward.batch["x"]
        inputs_by_name = {SINGLE_INPUT: x} if isinstance(x, Tensor) else x
        errors = [
            reconstruction_error(
                name in tokens, decode(decoder, features), inputs_by_name[name].flatten(1)
            )
            for name, decoder in forward.personal_params.items()
        ]
        return weighted_mean(torch.stack(errors).sum(0), forward.batch)

    return term


def decode(decoder: Tree, features: Tensor) -> Tensor:
    """Apply a decoder to features [b, d]; returns numbers [b, size] or scores of tokens."""
    hidden, output = decoder["hidden"], decoder["output"]
    activations = F.relu(F.linear(features, hidden["weight"], hidden["bias"]))
    return F.linear(activations, output["weight"], output["bias"])


def reconstruction_error(is_text: bool, decoded_x: Tensor, x: Tensor) -> Tensor:
    """Reconstruction error of each sample, [b].

    It is the mean squared error of numbers [b, size], or the mean cross-entropy of tokens [b,
    length] under one distribution with scores [b, vocabulary]: a decoder predicts which tokens a
    text has, not their positions. Positions after the end of a text hold a token, too.
    """
    if is_text:
        return -decoded_x.log_softmax(1).gather(1, x).mean(1)
    return (decoded_x - x).square().mean(1)
