"""ConvNet: three blocks of convolution, instance normalisation, ReLU and average pooling.

B. Zhao, K. R. Mopuri, H. Bilen. Dataset Condensation with Gradient Matching. ICLR 2021.
arXiv:2006.05929 (section 3.1, after Gidaris and Komodakis, CVPR 2018).

Most work on data set distillation uses this network, FedLGD (table 9) included. As in the released
code, instance normalisation is group normalisation with one channel a group, with a scale and a
shift. That code pads images of one channel by 3 in the first layer; this does not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from fl.api import Count, FedloomError


class Halving(nn.Module):
    """`nn.AvgPool2d(2)`, whose CPU code takes as long as a convolution of few channels."""

    def forward(self, x: Tensor) -> Tensor:
        """Average 2 x 2 pixels; a last odd row or column is left out."""
        if x.is_cuda:
            return F.avg_pool2d(x, 2)
        height, width = (size // 2 * 2 for size in x.shape[-2:])
        x = x[..., 0:height:2, :] + x[..., 1:height:2, :]
        return (x[..., 0:width:2] + x[..., 1:width:2]) / 4


@dataclass(frozen=True)
class ConvNet:
    """A ConvNet.

    Attributes:
        width: channels of each block.
        depth: number of blocks, each of which halves height and width.
    """

    width: Count = 128
    depth: Count = 3

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width), at least 2^depth pixels wide."""
        if len(shape) != 3 or min(shape[1:]) >> self.depth == 0:
            raise FedloomError(
                f"convnet: inputs of shape {shape}, with depth {self.depth}",
                f"[channels, height, width] of at least {2**self.depth} x {2**self.depth} pixels",
                "`x[:, None]`, if they are grey images" if len(shape) == 2 else "",
            )
        depth, height, width = shape
        blocks: list[nn.Module] = []
        for _ in range(self.depth):
            blocks += [
                nn.Conv2d(depth, self.width, 3, padding=1),
                nn.GroupNorm(self.width, self.width),
                nn.ReLU(),
                Halving(),
            ]
            depth, height, width = self.width, height // 2, width // 2
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(depth * height * width, classes))
