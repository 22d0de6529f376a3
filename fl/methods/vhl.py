"""VHL: clients train beside images of an untrained generator, one and the same for all of them.

Tang, Zhang, Shi, He, Han, Chu. Virtual Homogeneity Learning: Defending against Data Heterogeneity
in Federated Learning. ICML 2022. arXiv:2206.02465.

Family: features. Exchanged: model; once, images of a random generator. Local: these images. Key:
`lam`.

Every step takes a batch of virtual images beside the client's own. The loss has the cross-entropy
of both, and a supervised contrast over the features of both. This contrast moves a class's samples
to where its virtual images are, but does not move those; another contrast, of virtual images alone,
does. All weights are those of the released code's experiments.

The generator is our own small network in the manner of StyleGAN, with random weights from
`generator_seed` (see `generate_images`); the released code draws from a StyleGAN-v2 of its own, and
spreads the noise of its classes by an optimisation. As in FedLGD's comparison, virtual images have
the classes of the task, where the released experiments have classes of their own for them in the
classifier, and match them in the contrast alone. The images go to all clients before round 1, and
stay with them. On the same weights, batch and virtual batch, with the classes of the task, loss and
gradients are those of the released code (c5aa7a1) to 2e-15 in float64. There both batches pass
through the network as one, here one after the other, which differs under batch normalisation alone.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    BuildContext,
    Count,
    Forward,
    Method,
    NonNegative,
    Positive,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Seed,
    Term,
    Variables,
    classification_loss,
    cross_entropy,
    declare,
    keyed,
    recipe,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.contrastive_loss import supervised_contrastive_loss
from fl.blocks.first_round import copy_to_clients
from fl.blocks.local_images import check_image_inputs, image_labels

STREAM = keyed.stream_number("virtual batch")
STYLE_SIZE, CHANNELS, CONSTANT_SIDE = 64, 32, 4
"""Numbers of a style, channels of the layers, and the side of the constant."""
CLASS_SD, LATENT_SD, NOISE_SD = 0.3, 0.3, 0.1
"""Deviation of the classes' mean latents, of latents around them, and of noise, over all layers."""


class VHLServer(RecipeServer):
    """State of the server.

    Attributes:
        virtual: Virtual images, [classes x images, channels, height, width], ordered by class.
    """

    virtual: Tensor


class VHLClient(RecipeClient):
    """State of a client.

    Attributes:
        virtual: Its copy of the server's virtual images; zeros before it gets them.
    """

    virtual: Tensor


class VHLWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        virtual: As in `VHLClient`.
    """

    virtual: Tensor


@declare("global", one_input=True)
class VHL:
    """Training with virtual images of a shared generator.

    Attributes:
        images: Number of virtual images of every class.
        batch: Number of virtual images in a step.
        alpha: Weight of their cross-entropy.
        lam: Weight of the contrast.
        virtual_lam: Weight of the contrast between virtual images.
        tau: Temperature of both contrasts.
        generator_seed: Seed of the generator's weights and latents, for all seeds of runs.
    """

    images: Count = 100
    batch: Count = 128
    alpha: NonNegative = 1.0
    lam: NonNegative = 1.0
    virtual_lam: NonNegative = 0.1
    tau: Positive = 0.07
    generator_seed: Seed = 0

    def build(self, context: BuildContext) -> Method:
        """FedAvg with one more term, and a phase that sends the images."""
        check_image_inputs(context)
        base = recipe(context, terms=(cross_entropy, self.term(context.classes)))
        local = single_pass(base)

        def init(variables: Variables) -> tuple[VHLServer, VHLClient]:
            server, client = base.init(variables)
            template = trees.leaves(variables["params"])[0]
            generated = generate_images(
                self.generator_seed, context.classes, self.images, context.shape
            )
            images = generated.to(template)
            return {**server, "virtual": images}, {**client, "virtual": torch.zeros_like(images)}

        def begin(server: RecipeServer, client: VHLClient) -> VHLWork:
            return {**local.begin(server, client), "virtual": client["virtual"]}

        step = replace(local, begin=begin, sampling=replace(local.sampling, needs_keys=True))
        return replace(
            base,
            init=init,
            passes=(step,),
            earlier_phases=(copy_to_clients("virtual", "virtual"),),
            send=lambda server: shared_model(server, None),
            views={"global": shared_model},
        )

    def term(self, classes: int) -> Term:
        """Return the loss of a virtual batch, which is added to that of the client's own."""

        def virtual_loss(forward: Forward) -> Tensor:
            work: VHLWork = forward.work
            batch, images = forward.batch, work["virtual"]
            key = keyed.derive_keys(batch["key"][0], STREAM)
            positions = keyed.uniform(key, 0, (self.batch,)) * len(images)
            chosen = positions.long()
            x, y = images[chosen], image_labels(classes, self.images, images)[chosen]
            keys = key + torch.arange(self.batch, device=x.device)
            output = forward.network.train(forward.params, work["buffers"], x, key=keys)
            weights = torch.ones_like(x[:, 0, 0, 0])
            loss = classification_loss(output.outputs, {"y": y, "weight": weights})
            features, virtual_features = (
                forward.output.features.flatten(1),
                output.features.flatten(1),
            )
            contrast = supervised_contrastive_loss(
                torch.cat([features, virtual_features.detach()]),
                torch.cat([batch["y"], y]),
                self.tau,
                torch.cat([batch["weight"], weights]),
            )
            virtual_contrast = supervised_contrastive_loss(virtual_features, y, self.tau)
            return self.alpha * loss + self.lam * contrast + self.virtual_lam * virtual_contrast

        return virtual_loss


def generate_images(seed: int, classes: int, count: int, shape: tuple[int, ...]) -> Tensor:
    """Generate images of every class, float32 [classes x count, channels, height, width].

    They are ordered by class. Each channel has mean 0 and deviation 1 over all images. They are of
    an untrained generator, noise with structure that differs from class to class, after T. Karras
    et al. Analyzing and Improving the Image Quality of StyleGAN. CVPR 2020. arXiv:1912.04958. A
    layer maps latents to styles. From a constant of 4 x 4, each doubling of the side has a
    convolution whose weights are scaled by the style and normalised again, noise, a leaky ReLU, and
    a skip to the image's channels. Each class has its own mean of the latents, and of the noise in
    each layer.

    Args:
        seed: The seed of the generator's weights and latents.
        classes: The number of classes.
        count: The number of images of each class.
        shape: (channels, height, width).
    """
    generator = torch.Generator().manual_seed(seed)
    depth, height, width = shape
    layers = max(1, math.ceil(math.log2(max(height, width) / CONSTANT_SIDE)))

    def normal(*size: int, sd: float = 1.0) -> Tensor:
        return torch.randn(*size, generator=generator) * sd

    class_means, levels = (
        normal(classes, STYLE_SIZE, sd=CLASS_SD),
        F.normalize(normal(classes, layers), dim=1),
    )
    constant, mapping = (
        normal(1, CHANNELS, CONSTANT_SIDE, CONSTANT_SIDE),
        normal(STYLE_SIZE, STYLE_SIZE, sd=STYLE_SIZE**-0.5),
    )
    weights = [
        [
            normal(*size, sd=STYLE_SIZE**-0.5)
            for size in ((STYLE_SIZE, CHANNELS), (STYLE_SIZE, CHANNELS))
        ]
        + [normal(CHANNELS, CHANNELS, 3, 3), normal(depth, CHANNELS, sd=CHANNELS**-0.5)]
        for _ in range(layers)
    ]
    images_made = []
    for c in range(classes):
        z = class_means[c] + normal(count, STYLE_SIZE, sd=LATENT_SD)
        style = F.leaky_relu(z * z.square().mean(1, keepdim=True).rsqrt() @ mapping, 0.2)
        x, image = (
            constant.expand(count, -1, -1, -1),
            torch.zeros(count, depth, CONSTANT_SIDE, CONSTANT_SIDE),
        )
        for layer, (first, second, kernel, colours) in enumerate(weights):
            x = F.interpolate(x, scale_factor=2.0, mode="bilinear")
            image = F.interpolate(image, scale_factor=2.0, mode="bilinear")
            x = modulated_convolution(x, 1 + style @ first, kernel)
            noise = normal(count, 1, *x.shape[-2:], sd=NOISE_SD / layers)
            x = F.leaky_relu(x + levels[c, layer] + noise, 0.2)
            image = image + torch.einsum("ndhw,cd,nd->nchw", x, colours, 1 + style @ second)
        images_made.append(image)
    images = F.interpolate(torch.cat(images_made), (height, width), mode="bilinear", antialias=True)
    return (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)


def modulated_convolution(x: Tensor, style: Tensor, kernel: Tensor) -> Tensor:
    """Convolve images with weights scaled by each image's style and normalised to length 1.

    Args:
        x: Features, [n, in, height, width].
        style: Styles, [n, in].
        kernel: The weights, [out, in, 3, 3]; the length is that of each output's weights.
    """
    kernels = kernel * style[:, None, :, None, None]
    kernels = kernels * (kernels.square().sum((2, 3, 4), keepdim=True) + 1e-8).rsqrt()
    joined = F.conv2d(x.flatten(0, 1)[None], kernels.flatten(0, 1), padding=1, groups=len(x))
    return joined[0].unflatten(0, (len(x), -1))
