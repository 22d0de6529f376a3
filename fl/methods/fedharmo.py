"""FedHarmo (HarmoFL): images get the mean amplitude of all clients, and steps seek flat minima.

Jiang, Wang, Dou. HarmoFL: Harmonizing Local and Global Drifts in Federated Learning on
Heterogeneous Medical Images. AAAI 2022. arXiv:2112.10775.

Family: features. Exchanged: model; in round 1, the mean amplitude. Local: nothing. Key: `alpha`.

The slides on FedFA+ call it FedHarmo. Clients of the first round send the mean amplitude of their
images. The mean of those, weighted by samples, is the amplitude of every image from then on, in
tests too. The released code fixes the amplitude after the first round as well, but takes it from a
client's first batch (its momentum is cut to 0), trains the first round with each client's own
amplitude, and replaces the mean of an image only: ``spectrum: mean``. It counts clients alike, as
here under ``weighting: uniform``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from fl.api import (
    Batch,
    BuildContext,
    FedloomError,
    Method,
    NonNegative,
    Predictor,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Tree,
    Variables,
    declare,
    recipe,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.first_round import mean_before_round_1
from fl.blocks.sharpness import sharpness_aware

Spectrum = Literal["whole", "mean"]
"""Which amplitudes are replaced: all, or only that of frequency 0, an image's mean."""


class FedHarmoServer(RecipeServer):
    """State of the server.

    Attributes:
        amplitude: Amplitude that all images get, [channels, height, width].
    """

    amplitude: Tensor


class FedHarmoModel(Variables):
    """Weights that are evaluated, with the amplitude of their inputs, see `FedHarmoServer`."""

    amplitude: Tensor


@declare("global", tasks="any", one_input=True)
class FedHarmo:
    """FedAvg with normalised image amplitudes and a flat-minimum step.

    Attributes:
        alpha: Size of the weight perturbation (the released code: .05).
        spectrum: Replaced amplitudes: the `whole` spectrum, or only the `mean` of an image's
            pixels.
    """

    alpha: NonNegative = 0.05
    spectrum: Spectrum = "whole"

    def build(self, context: BuildContext) -> Method:
        """FedSAM on images that are brought to one amplitude."""
        network, shape, spectrum = context.network, context.shape, self.spectrum
        if len(shape) != 3:
            dimensions = ", ".join(map(str, shape))
            raise FedloomError(
                f"fedharmo: inputs have shape ({dimensions})", "images, (channels, height, width)"
            )
        base = recipe(context)
        local = single_pass(base)

        def init(variables: Variables) -> tuple[FedHarmoServer, RecipeClient]:
            server, client = base.init(variables)
            return {**server, "amplitude": trees.leaves(server)[0].new_ones(shape)}, client

        def loss(server: FedHarmoServer, work: RecipeWork, batch: Batch) -> tuple[Tensor, Tree]:
            x = with_amplitude(batch["x"], server["amplitude"], spectrum)
            return local.loss(server, work, {**batch, "x": x})

        def predict(model: FedHarmoModel, memory: Tree, x: Tensor) -> Tensor:
            x = with_amplitude(x, model["amplitude"], spectrum)
            return network.eval(model["params"], model["buffers"], x).outputs

        return replace(
            base,
            init=init,
            earlier_phases=(mean_before_round_1(amplitude_sums),),
            passes=(sharpness_aware(replace(local, loss=loss), self.alpha),),
            views={"global": Predictor(evaluated_model, predict, is_per_sample=True)},
        )


def amplitude_sums(server: Tree, client: RecipeClient, upload: Tree, batch: Batch) -> Tree:
    """Return the sum of the amplitudes of a batch, and its number of images."""
    weight = batch["weight"]
    total = (amplitude(batch["x"]) * weight.reshape(-1, 1, 1, 1)).sum(0)
    return {"amplitude": total, "count": weight.sum()}


def evaluated_model(server: FedHarmoServer, client: object) -> FedHarmoModel:
    """Return the shared model with the amplitude, as a view."""
    return {**shared_model(server, None), "amplitude": server["amplitude"]}


def amplitude(images: Tensor) -> Tensor:
    """|F(x)| of each channel, [b, c, h, w], for images [b, c, h, w]."""
    return torch.fft.fft2(images).abs()


def with_amplitude(images: Tensor, target: Tensor, spectrum: Spectrum = "whole") -> Tensor:
    """Images [b, c, h, w] that keep their phases and get the amplitudes ``target``, [c, h, w]."""
    frequencies = torch.fft.fft2(images)
    amplitudes = target.expand(images.shape)
    if spectrum == "mean":
        at_zero = torch.zeros_like(target)
        at_zero[..., 0, 0] = 1
        amplitudes = torch.where(at_zero.bool(), amplitudes, frequencies.abs())
    return torch.fft.ifft2(torch.polar(amplitudes, frequencies.angle())).real
