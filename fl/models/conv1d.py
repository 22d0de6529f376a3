"""A convolutional network over the steps of series, such as the channels of a sensor.

Z. Wang, W. Yan and T. Oates. Time Series Classification from Scratch with Deep Neural Networks: A
Strong Baseline. IJCNN 2017. arXiv:1611.06455.

It is the paper's fully convolutional network: blocks of convolution, normalisation and ReLU, none
of which shortens the series, the mean over steps, and a linear layer. Where the paper's kernel is
even, zeros before and after a series are equally many, so that it becomes one step longer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from fl.api import Count
from fl.blocks.norm_layers import Norm, norm_layer


@dataclass(frozen=True)
class Conv1d:
    """A convolutional network over steps.

    Attributes:
        channels: channels of the convolutions.
        kernels: widths of the convolutions, in steps, one for each.
        norm: normalisation before ReLU, or nothing.
    """

    channels: tuple[Count, ...] = (128, 256, 128)
    kernels: tuple[Count, ...] = (8, 5, 3)
    norm: Norm | None = "batch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of series (channels, steps) that returns logits."""
        if len(shape) != 2:
            raise ValueError(f"inputs are {list(shape)}. Allowed: series [channels, steps]")
        if len(self.kernels) != len(self.channels):
            counts = f"{len(self.kernels)} kernels for {len(self.channels)} channels"
            raise ValueError(f"there are {counts}. Allowed: equally many")
        layers: list[nn.Module] = []
        depth = shape[0]
        for outputs, kernel in zip(self.channels, self.kernels, strict=True):
            layers.append(nn.Conv1d(depth, outputs, kernel, padding=kernel // 2))
            layers += [norm_layer(self.norm, outputs, dims=1)] if self.norm else []
            layers.append(nn.ReLU())
            depth = outputs
        layers += [nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(depth, classes)]
        return nn.Sequential(*layers)
