"""ResNet-50, torchvision's, with its own stem or one for small images.

He, Zhang, Ren, Sun. Deep Residual Learning for Image Recognition. CVPR 2016. arXiv:1512.03385.

The stem for small images is that of Lee et al. (FedL2P, NeurIPS 2023, appendix D): a 3x3
convolution of stride 1 instead of the 7x7 one of stride 2, and no max-pooling. The classifier has
2,048 features.
"""

from __future__ import annotations

from fl.blocks.resnets import ResNet


class ResNet50(ResNet):  # noqa: D101 (the keys' meanings are inherited)
    depth = 50
