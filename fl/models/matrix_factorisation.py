"""Matrix factorisation: a vector of each item, and a linear layer, which is the user's vectors.

Y. Koren, R. Bell and C. Volinsky. Matrix Factorization Techniques for Recommender Systems. Computer
2009; M. Ammad-ud-din, E. Ivannikova, S. A. Khan, W. Oyomno, Q. Fu, K. E. Tan and A. Flanagan.
Federated Collaborative Filtering for Privacy-Preserving Personalized Recommendation System. 2019.
arXiv:1901.09888 (a user's vector stays on the device).

The logit of a class is the product of an item's vector and the layer's row for the class, plus a
bias. With `fedper` or `fedrep` the layer stays with the client: then rows are the user's own
vectors, as in the second paper. With `fedavg` all users share them.

An input of several items has the mean of their vectors. Products begin small, so that an item
without training samples has logits near the bias. Vectors are multiplied by a factor and so learn
faster than the layer: few clients have samples of an item, and a mean over clients moves its vector
little.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fl.api import Count, Positive

INITIAL_DEVIATION = 0.1
"""Standard deviation of the numbers that multiplied vectors begin with."""


@dataclass(frozen=True)
class MatrixFactorisation:
    """Vectors of items and a linear layer.

    Attributes:
        tokens: number of items, numbered from 0; a plan takes it from the data set.
        width: width of their vectors.
        factor: number by which vectors are multiplied; they learn its square times as fast.
    """

    tokens: Count = 10_000
    width: Count = 16
    factor: Positive = 10.0

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Build a model of items (1,), or of several (items,), that returns logits."""
        return _MatrixFactorisation(self, classes)


class _MatrixFactorisation(nn.Module):
    def __init__(self, choices: MatrixFactorisation, classes: int) -> None:
        super().__init__()
        self.factor = choices.factor
        self.embedding = nn.Embedding(choices.tokens, choices.width)
        nn.init.normal_(self.embedding.weight, std=INITIAL_DEVIATION / choices.factor)
        self.classifier = nn.Linear(choices.width, classes)

    def forward(self, x: Tensor) -> Tensor:
        vectors = self.factor * self.embedding(x.flatten(1))
        logits: Tensor = self.classifier(vectors.mean(dim=1))
        return logits
