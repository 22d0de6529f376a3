"""A call that trains in a moment, and the cells of a notebook."""

from __future__ import annotations

import linecache
import types
from typing import Any

CALL: dict[str, Any] = {
    "dataset": {"synthetic": {"alpha": 1.0, "clients": 4, "samples": 40}},
    "partition": {"dirichlet": {"alpha": 0.5, "clients": 4, "min_samples": 5}},
    "model": {"mlp": {"hidden": (5,)}},
    "seeds": 1,
    "rounds": 6,
    "batch_size": 8,
    "lr": 0.05,
    "momentum": 0.9,
    "progress": False,
}
"""The study `planning.STUDY` as a call, without its methods."""
CELLS = (
    """
import math
import torch.nn as layers
from torch import Tensor
from fl.api import BuildContext, Count, Forward, NonNegative, ReferenceTerm, cross_entropy
from fl.api import declare, recipe
from fl.api import weighted_mean as over_samples
from dataclasses import dataclass
""",
    """
HALF = 0.5

def size(outputs):
    return HALF * outputs.square().mean(dim=1)
""",
    """
@declare("global", tasks="any")
class ShortOutputs:
    \"""strength: weight of the penalty.\"""

    strength: NonNegative = 0.1

    def build(self, context: BuildContext):
        return recipe(context, terms=(cross_entropy, penalty(self.strength)))

def penalty(strength):
    def term(forward: Forward) -> Tensor:
        return strength * over_samples(size(forward.output.outputs), forward.batch)
    return term
""",
    """
@dataclass(frozen=True)
class Net:
    \"""width: of the hidden layer.\"""

    width: Count = 5

    def build(self, shape, classes):
        hidden = layers.Linear(math.prod(shape), self.width)
        last = layers.Linear(self.width, classes)
        return layers.Sequential(layers.Flatten(), hidden, layers.ReLU(), last)

@dataclass(frozen=True)
class Short:
    \"""mu: its weight.\"""

    mu: NonNegative = 0.1

    def build(self, context: BuildContext):
        return penalty(self.mu)
""",
)


def cell(notebook: types.ModuleType, text: str) -> None:
    name = f"/tmp/ipykernel_1/{hash(text)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec", dont_inherit=True), vars(notebook))
