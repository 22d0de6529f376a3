"""Import torchvision, also where its compiled extension does not fit torch.

Next to a CPU-only torch, the torchvision of PyPI (built for CUDA) cannot load its extension. Then
``import torchvision`` fails with "operator torchvision::nms does not exist", because torchvision
describes operators that only the extension defines. Models, datasets and transforms do not need
these operators, so it is enough to declare two of them by name. If the extension loads, this module
declares nothing.

Import this module before torchvision: ``from fl.pytorch.vision import torchvision``.
"""

from __future__ import annotations

import importlib.util
import pickle
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.library import Library

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _extension_loads() -> bool:
    """Whether torchvision's compiled extension can be loaded."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # Not installed: the import below raises the error.
    try:
        for path in Path(spec.origin).parent.glob("_C*.*"):
            torch.ops.load_library(str(path))
    except OSError:
        return False
    return True


# The declarations live as long as this object.
_declared: Library | None = None
if not _extension_loads():
    _declared = Library("torchvision", "DEF")
    for schema in SCHEMAS:
        _declared.define(schema)

import torchvision  # noqa: E402  (only after the declarations)

from fl.base.errors import FedloomError  # noqa: E402
from fl.base.folders import path_of  # noqa: E402

__all__ = ["load_pretrained", "torchvision"]


def load_pretrained(network: nn.Module, weights: str, published: Any) -> None:
    """Load weights trained on ImageNet into a torchvision model of 1,000 classes.

    Args:
        network: The model; it is changed.
        weights: The file, or ``imagenet`` for the file of ``published`` in the user's cache;
            nothing is downloaded.
        published: A member of one of torchvision's enumerations of weights.

    Raises:
        FedloomError: If the file is missing or does not fit the model.
    """
    path = path_of(weights)
    if weights == "imagenet":
        path = Path(torch.hub.get_dir()) / "checkpoints" / Path(published.url).name
    if not path.is_file():
        raise FedloomError(
            f"weights: the file {path} does not exist",
            advice=f"download {published.url} to that path, or name a file that you have",
        )
    try:
        network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    except (
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
        EOFError,
        pickle.UnpicklingError,
    ) as error:
        reason = str(error).strip().split("\n")[0]
        raise FedloomError(
            f"weights: {path} cannot be loaded into {type(network).__name__} ({reason})",
            "the state of a torchvision model of this architecture with its 1,000 classes",
        ) from None
