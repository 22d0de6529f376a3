"""Images of an untrained generator: noise with structure that differs from class to class.

After T. Karras et al. Analyzing and Improving the Image Quality of StyleGAN. CVPR 2020.
arXiv:1912.04958, from whose untrained network VHL draws. This is a small one of our own, with
random weights from a seed. A layer maps latents to styles. From a constant of 4 x 4, each doubling
of the side has a convolution whose weights are scaled by the style and normalised again, noise, a
leaky ReLU, and a skip to the image's channels. Each class has its own mean of the latents, and of
the noise in each layer.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

STYLE_SIZE, CHANNELS, CONSTANT_SIDE = 64, 32, 4
"""Numbers of a style, channels of the layers, and the side of the constant."""
CLASS_SD, LATENT_SD, NOISE_SD = 0.3, 0.3, 0.1
"""Deviation of the classes' mean latents, of latents around them, and of noise, over all layers."""


def generate_images(seed: int, classes: int, count: int, shape: tuple[int, ...]) -> Tensor:
    """Generate images of every class, float32 [classes x count, channels, height, width].

    They are ordered by class. Each channel has mean 0 and deviation 1 over all images.

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
