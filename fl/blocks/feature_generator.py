"""A generator of features by class: a small network of noise and a label, trained by the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from fl.api import Tree, adamw
from fl.blocks.linear_layers import head_outputs, linear_parameters

NOISE, HIDDEN = 32, 256
"""Length of the noise and width of the hidden layer: those of FedGen's code for MNIST."""
ADAM = adamw(weight_decay=0.0)

Ensemble = Literal["logits", "losses"]
"""Loss of several heads: cross-entropy of their mean `logits`, or mean of their `losses` with
weights by each client's share of the class.
"""


def initial_generator(seed: int, example: Tensor, classes: int, width: int) -> dict[str, Tree]:
    """Draw a generator: its parameters, and the state of its optimizer.

    Args:
        seed: Seed of the random numbers.
        example: A tensor with the precision and device of the result.
        classes: Number of classes.
        width: Number of features.
    """
    draws = torch.Generator().manual_seed(seed)
    params = {
        "hidden": linear_parameters(draws, example, NOISE + classes, HIDDEN),
        "out": linear_parameters(draws, example, HIDDEN, width),
    }
    return {"params": params, "optimizer": ADAM.init(params)}


def train_generator(
    generator: Tree,
    loss: Callable[[Tree, Tensor, Tensor], Tensor],
    counts: Tensor,
    steps: int,
    batch: int,
    lr: float,
    seed: int,
) -> dict[str, Tree]:
    """Return the generator after steps of Adam, each on newly drawn labels and normal noise.

    Args:
        generator: Parameters and the state of the optimizer.
        loss: Function from parameters, labels [b] and noise [b, m] to a scalar.
        counts: Numbers of samples by class, to which the probabilities of labels are proportional.
        steps: Number of steps.
        batch: Number of features in a step, b.
        lr: Learning rate.
        seed: Seed of labels and noise.
    """
    params, state, slope = generator["params"], generator["optimizer"], grad(loss)
    draws, example = torch.Generator().manual_seed(seed), params["out"]["weight"]
    drawn = torch.multinomial(counts.double().cpu(), steps * batch, True, generator=draws)
    noise = torch.randn(steps, batch, NOISE, generator=draws, dtype=torch.float64).to(example)
    labels = drawn.reshape(steps, batch).to(example.device)
    for step in range(steps):
        gradient = slope(dict(params), labels[step], noise[step])
        with torch.no_grad():
            params, state = ADAM.step(params, gradient, state, lr)
    return {"params": params, "optimizer": state}


def generated(generator: Tree, noise: Tensor, labels: Tensor) -> Tensor:
    """Return features [b, d] of noise [b, m] and labels [b]."""
    first, second = generator["hidden"], generator["out"]
    classes = first["weight"].shape[-1] - noise.shape[-1]
    inputs = torch.cat([noise, F.one_hot(labels, classes).to(noise.dtype)], dim=-1)
    hidden = F.relu(F.linear(inputs, first["weight"], first["bias"]))
    return F.linear(hidden, second["weight"], second["bias"])


def ensemble_loss(
    heads: Tree, counts: Tensor, features: Tensor, labels: Tensor, ensemble: Ensemble
) -> Tensor:
    """Return the loss of a stack of heads on features of these labels, a scalar.

    Args:
        heads: Classifiers, leaves [K, ...].
        counts: Class counts of their clients, [K, C].
        features: Features, [b, d].
        labels: Their classes, [b].
        ensemble: How heads are put together.
    """
    outputs = vmap(head_outputs, (0, None))(dict(heads), features)
    if ensemble == "logits":
        return F.cross_entropy(outputs.mean(0), labels)
    losses = vmap(lambda z: F.cross_entropy(z, labels, reduction="none"))(outputs)
    shares = counts.to(losses.dtype) / counts.sum(0).clamp(min=1)
    return (shares[:, labels] * losses).sum(0).mean()


def diversity_loss(noise: Tensor, features: Tensor) -> Tensor:
    """Return exp(-mean_ij |z_i - z_j| (e_i - e_j)^2), with means over entries of both differences.

    Mao, Lee, Tseng, Ma, Yang. Mode Seeking Generative Adversarial Networks for Diverse Image
    Synthesis. CVPR 2019, in the form of FedGen's code.

    Args:
        noise: Noise e, [b, m].
        features: Features z, [b, d].
    """
    feature_gaps = (features[:, None] - features[None]).abs().mean(-1)
    noise_gaps = (noise[:, None] - noise[None]).square().mean(-1)
    return (-(feature_gaps * noise_gaps).mean()).exp()
