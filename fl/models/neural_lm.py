"""A neural language model: which token follows the last few ones, by one hidden layer.

Y. Bengio, R. Ducharme, P. Vincent and C. Jauvin. A Neural Probabilistic Language Model. JMLR 2003.

The vectors of the last tokens of an input stand side by side as one vector v; the logits are
b + U tanh(d + H v), as in the paper without direct connections (its W = 0). Weights begin as in
PyTorch's layers and are not decayed unless `weight_decay` says so; the paper decays H, U and the
vectors.

It reads the end of an input: it is for texts that are cut to one length, such as those of `roles`
and `shakespeare`. Of a short text that is filled up it would read what fills it; `lstm` does not.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from torch import Tensor, nn

from fl.api import Count


@dataclass(frozen=True)
class NeuralLM:
    """A layer of tanh over the vectors of the last tokens.

    Attributes:
        tokens: number of characters or words, numbered from 0; a plan takes it from the data set.
        context: number of tokens that are read, from the end of an input.
        embedding: width of their vectors.
        hidden: width of the hidden layer.
    """

    tokens: Count = 80
    context: Count = 8
    embedding: Count = 8
    hidden: Count = 64

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of tokens (length,), or (texts, length) read one after the other."""
        if math.prod(shape) < self.context:
            raise ValueError(f"texts must be at least {self.context} tokens long")
        layers: dict[str, nn.Module] = {
            "last_tokens": _LastTokens(self.context),
            "embedding": nn.Embedding(self.tokens, self.embedding),
            "flatten": nn.Flatten(),
            "hidden": nn.Linear(self.context * self.embedding, self.hidden),
            "tanh": nn.Tanh(),
            "classifier": nn.Linear(self.hidden, classes),
        }
        return nn.Sequential(OrderedDict(layers))


class _LastTokens(nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, -self.count :]
