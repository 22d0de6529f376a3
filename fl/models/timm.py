"""A model for images of the package timm, with weights from a file of the user's own.

R. Wightman. PyTorch Image Models. 2019. doi:10.5281/zenodo.4414861.

`pip install 'fedloom[pretrained]'` installs the package; nothing is downloaded. The classifier has
as many outputs as the data set has classes, and is new unless the file's has as many. Weights of a
first layer for other channels or sizes than the data set's are adapted as timm does it.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from fl.base.errors import FedloomError, optional_package, similar_name
from fl.base.folders import path_of


@dataclass(frozen=True)
class Timm:
    """A model of timm.

    Attributes:
        architecture: name of the model in timm, such as `vit_tiny_patch16_224`.
        weights: file of its weights, `.safetensors` or `.pth`, or nothing.
    """

    architecture: str
    weights: str | None = None

    arithmetic: ClassVar[str] = "native"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of images (channels, height, width) that returns logits.

        Raises:
            FedloomError: For an unknown architecture, or a file that does not fit it.
        """
        advice = "pip install 'fedloom[pretrained]'"
        with optional_package("model timm", advice):
            from fl.pytorch import vision  # noqa: F401 timm imports torchvision.
        with optional_package("model timm", advice):
            import timm
        names = timm.list_models()
        if self.architecture not in names:
            similar = similar_name(self.architecture, names)
            hint = f" (did you mean {similar!r}?)" if similar else ""
            problem = f"architecture: timm has no model {self.architecture!r}{hint}"
            raise FedloomError(problem, advice="timm.list_models() lists all")
        keys: dict[str, Any] = {"num_classes": classes, "in_chans": shape[0]}
        path = None if self.weights is None else path_of(self.weights)
        if path is not None and not path.is_file():
            raise FedloomError(f"weights: the file {path} does not exist")
        if path is not None:
            keys |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}}
        try:
            network = _create(timm, self.architecture, keys, shape)
            stored = network.state_dict() if path is None else timm.models.load_state_dict(path)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            problem = f"weights: {path} cannot be loaded into {self.architecture} ({reason})"
            raise FedloomError(problem, "the state of a model of this architecture") from error
        # timm loads what the file has, however little that is.
        missing = sorted(network.state_dict().keys() - stored.keys())
        if missing:
            problem = f"weights: {path} lacks {', '.join(missing[:3])} of {self.architecture}"
            raise FedloomError(problem, "the state of a model of this architecture")
        return network


def _create(
    timm: Any, architecture: str, keys: dict[str, Any], shape: tuple[int, ...]
) -> nn.Module:
    """Return a new model; transformers have a size of images, convolutions take any."""
    with contextlib.suppress(TypeError):
        network: nn.Module = timm.create_model(architecture, **keys, img_size=shape[1:])
        return network
    network = timm.create_model(architecture, **keys)
    return network
