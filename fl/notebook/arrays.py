"""Data that a notebook has in memory, as a data set of a study."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl.base import files
from fl.base.errors import ConfigError, FedloomError, Location
from fl.data.datasets.arrays import check
from fl.data.image_files import image_array
from fl.notebook.plainly import plainly

AT = Location("fl.arrays")


@dataclass(frozen=True, repr=False)
class Given:
    """Arrays as the data set `arrays` reads them, and a name for their file."""

    name: str
    arrays: Mapping[str, np.ndarray]

    def item(self, folder: Path) -> dict[str, Any]:
        """What a study says of it; the file is written, unless it is there.

        Args:
            folder: For files such as this one, which are named by their content.
        """
        content = hashlib.sha256()
        for key, array in sorted(self.arrays.items()):
            content.update(f"{key} {array.dtype.str} {array.shape} ".encode())
            content.update(np.ascontiguousarray(array).data)
        path = folder / f"{self.name}-{content.hexdigest()[:16]}.npz"
        if not path.exists():
            named: dict[str, Any] = dict(self.arrays)
            with files.disk_errors(path):
                folder.mkdir(parents=True, exist_ok=True)
                with files.atomic_writer(path) as file:
                    np.savez(file, **named)
        return {"arrays": {"path": str(path)}}


@plainly
def arrays(
    x: Any,
    y: Any = None,
    *,
    client: Any = None,
    domain: Any = None,
    split: Any = None,
    name: str = "arrays",
) -> Given:
    """Data of your own for ``fl.run(dataset=...)``: arrays, tensors, or a PyTorch data set.

    They are written to ``arrays/`` in the folder of data, under a name that holds their content. A
    study names the same data by ``arrays: {path: ...}``, and has the same runs.

    Args:
        x: Inputs [samples, ...]: floating-point numbers, which are normalised; images of 8 bits
            [samples, channels, height, width]; other whole numbers are tokens. Or a map-style
            ``torch.utils.data.Dataset`` of pairs of input (an array, a tensor or a picture of
            Pillow's) and label; it must give the same each time, so no transform of it may draw.
        y: Labels [samples], whole numbers or texts; left out beside a data set.
        client: Whose each sample is, for the partition ``natural``.
        domain: Where each sample is from, for the partitions by domain.
        split: The published split of each sample: train, val or test.
        name: What the file's name begins with.

    Raises:
        FedloomError: For data of which no data set can be made, such as inputs that are no finite
            numbers and labels that are no classes.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,50}", name):
        raise ConfigError(AT / "name", f"is {name!r}", "up to 50 letters, digits, - and _")
    if y is None:
        x, y = _pairs(x)
    given = {"x": x, "y": y, "client": client, "domain": domain, "split": split}
    made = {key: _array(key, value) for key, value in given.items() if value is not None}
    check(made, "fl.arrays")
    return Given(name, made)


def _pairs(dataset: Any) -> tuple[Any, Any]:
    """Inputs and labels of a map-style data set."""
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        problem = f"is a {type(dataset).__name__}, and y is missing"
        raise ConfigError(AT / "x", problem, "x and y, or a data set with a length")
    try:
        inputs, labels = zip(*(dataset[i] for i in range(len(dataset))), strict=True)
    except (TypeError, ValueError):
        problem = f"is a {type(dataset).__name__} that does not give pairs, and y is missing"
        raise ConfigError(AT / "x", problem, "x and y, or a data set of (input, label)") from None
    x = [
        image_array(sample) if hasattr(sample, "getbands") else np.asarray(sample)
        for sample in inputs
    ]
    for place, sample in enumerate(x):
        if sample.shape != x[0].shape or sample.dtype != x[0].dtype:
            shown = f"{sample.dtype} {list(sample.shape)}"
            problem = (
                f"is {shown} in sample {place}, and {x[0].dtype} {list(x[0].shape)} in the first"
            )
            allowed = "inputs of one shape and type, such as images that a transform resizes"
            raise ConfigError(AT / "x", problem, allowed)
    return np.stack(x), np.stack([np.asarray(label) for label in labels])


def _array(key: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FedloomError(f"{AT / key}: is no array ({error})") from None
    if array.dtype == object and all(isinstance(text, str) for text in array.ravel()):
        array = array.astype(str)  # As pandas has texts.
    return array
