"""Decoders, which reconstruct inputs from the features that enter the classifier.

There is one decoder for each input of a sample, of two linear layers with ReLU between them. The
loss of numbers is the squared error. For tokens, a decoder predicts which tokens a text has, but
not their positions: it returns one distribution over all tokens for the whole text, and the loss is
the cross-entropy of every position. Positions after the end of a text hold a token, too.
"""

from __future__ import annotations

from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.api import BuildContext, Forward, Term, Tree, rng, trees, weighted_mean
from fl.blocks import linear_layers
from fl.blocks.linear_layers import linear_parameters

SINGLE_INPUT = "x"
"""The name of the input of a model that has only one."""


def input_shapes(context: BuildContext) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
    """Return the shapes of a sample's inputs by name, and the names of inputs that are tokens."""
    if context.shapes:
        return dict(context.shapes), context.tokens
    return {SINGLE_INPUT: context.shape}, frozenset(
        [SINGLE_INPUT] if context.network.uses_tokens else []
    )


def initial_decoders(context: BuildContext, width: int, params: Tree) -> Tree:
    """Draw the initial weights of a decoder for each input, by the run's seed.

    Args:
        context: The context in which the method is built.
        width: The number of units between the two layers.
        params: The network's parameters.
    """
    network, example = context.network, trees.leaves(params)[0]
    shapes, tokens = input_shapes(context)
    vocabulary_sizes = [len(params[f"{name}.weight"]) for name in network.layers(nn.Embedding)]
    generator = torch.Generator().manual_seed(rng.torch_seed(context.seed, "decoders"))
    features = linear_layers.feature_width(network, params)
    return {
        name: {
            "hidden": linear_parameters(generator, example, features, width),
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


def reconstruction_error(tokens: bool, decoded_x: Tensor, x: Tensor) -> Tensor:
    """Reconstruction error of each sample, [b].

    It is the mean squared error of numbers [b, size], or the mean cross-entropy of tokens [b,
    length] under one distribution with scores [b, vocabulary].
    """
    if tokens:
        return -decoded_x.log_softmax(1).gather(1, x).mean(1)
    return (decoded_x - x).square().mean(1)
