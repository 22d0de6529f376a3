"""torchvision, importable also where its compiled part does not fit torch.

Beside a CPU-only torch, the torchvision of PyPI (built for CUDA) cannot load its extension, and
``import torchvision`` then fails with "operator torchvision::nms does not exist", because it
describes operators that only the extension defines. Models, datasets and transforms need none of
them. Declaring the two by name is enough; where the extension loads, nothing is done.

Import it before torchvision: ``from fl.vision import torchvision``.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch.library import Library

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _extension_loads() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return True  # Not installed: let the import below say so.
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

__all__ = ["torchvision"]
