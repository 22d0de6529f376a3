"""MMD-D: a discrepancy whose kernel contains a small network, trained to tell two samples apart.

S. Ayromlou, D. B. Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (section
3.4), after F. Liu et al. Learning deep kernels for non-parametric two-sample tests. ICML 2020.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl import trees
from fl.parts.distances import squared_distances, three_distances
from fl.parts.kernel_ratio import Inputs, moved_apart, ratio, two_kernels
from fl.trees import Tree

HIDDEN, FEATURES = 10, 50
BANDWIDTHS = {"phi": 0.005, "q": 2048.0}
LAST = "3"
"""The last layer of the featurizer."""

Form = Literal["product", "sum"]
"""Whether q multiplies both terms of the kernel, as in the released code, or stands alone."""


@dataclass(frozen=True)
class DeepKernel:
    """A kernel with its parameters. To make one costs nothing, so training makes one in each step.

    ``product``: k(a, b) = [(1 - eps) exp(-|phi a - phi b|^2 / s_phi) + eps] exp(-|a - b|^2 / s_q);
    ``sum``: (1 - eps) exp(-|phi a - phi b|^2 / s_phi) + eps exp(-|a - b|^2 / s_q) (equation 2).

    Samples x and y have the same number of rows, ``[..., n, d]``; results are ``[...]``.

    Attributes:
        params: A tree as `start` makes it, with or without the leading dimensions of the samples.
            ``featurizer``: phi, linear layers d-10-10-10-50 with softplus between them;
            ``epsilon``: the logit of eps; ``phi``, ``q``: the square roots of the bandwidths, as in
            the released code.
    """

    params: Tree
    form: Form = "product"

    @staticmethod
    def start(width: int, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """Parameters to begin with, on the CPU; the same for the same seed.

        Bandwidths are .005 (phi) and 2048 (q), and eps is below 1e-10.

        Args:
            width: The number of features, d.
        """
        sizes = pairwise((width, HIDDEN, HIDDEN, HIDDEN, FEATURES))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(into, out, dtype=dtype) for into, out in sizes]
            epsilon = torch.log(1e-10 * (1 - torch.rand((), dtype=dtype)))
        return {
            "featurizer": {
                str(i): {name: p.detach() for name, p in layer.named_parameters()}
                for i, layer in enumerate(layers)
            },
            "epsilon": epsilon,
            **{key: torch.tensor(math.sqrt(s), dtype=dtype) for key, s in BANDWIDTHS.items()},
        }

    def mmd2(self, x: Tensor, y: Tensor) -> Tensor:
        """MMD-D^2: the mean of h(s, t) over different rows s and t (Liu et al. 2020, equation 2).

        It is unbiased and may be negative; for one row it is 0.
        """
        return _off_diagonal_mean(self._terms(x, y))

    def objective(
        self, x: Tensor, y: Tensor, *, shift: int = 0, plain: Tensor | None = None
    ) -> Tensor:
        """MMD-D^2 / sigma, what training the kernel maximises (equation 3).

        sigma^2 = 4 (mean_s r_s^2 - (mean_s r_s)^2) + 1e-8, where r_s is the mean of h(s, t) over
        all t. The samples are constants: no gradient flows to them.

        Args:
            shift: By how many places the rows of y are moved, as by `torch.roll`, before they are
                paired with those of x.
            plain: `fl.parts.distances.three_distances` of x and y (unshifted), where the caller has
                them already.
        """
        x, y = x.detach(), y.detach()
        plain = three_distances(x, y) if plain is None else plain.detach()
        apart = moved_apart(x, y, shift).square().sum(-1)
        lead, weight = x.shape[:-2], self.params["featurizer"][LAST]["weight"]
        weight = weight.expand(*lead, *weight.shape[-2:])
        phi, q, epsilon = (scale.expand(lead) for scale in self._scales())
        hidden = self._hidden(x), self._hidden(y)
        product = self.form == "product"
        return ratio(Inputs(*hidden, weight, phi, q, epsilon, plain, apart, shift, product))

    def featurize(self, x: Tensor) -> Tensor:
        """phi(x), ``[..., n, 50]``."""
        return _linear(self.params["featurizer"][LAST], self._hidden(x))

    def _hidden(self, x: Tensor) -> Tensor:
        """What the last layer of phi takes, ``[..., n, 10]``."""
        for name, layer in self.params["featurizer"].items():
            if name != LAST:
                x = F.softplus(_linear(layer, x))
        return x

    def _terms(self, x: Tensor, y: Tensor) -> Tensor:
        """h(s, t), ``[..., n, n]``."""
        deep = squared_distances(self.featurize(x), self.featurize(y))
        within_x, within_y, there, back = self._kernels(deep, squared_distances(x, y)).unbind(-3)
        return (within_x - there) + (within_y - back)

    def _kernels(self, deep: Tensor, plain: Tensor) -> Tensor:
        """k - 1 from squared distances of features and of samples, both ``[...]`` and more
        dimensions.
        """
        phi, q, epsilon = (trees.align(scale, deep) for scale in self._scales())
        return torch.lerp(*two_kernels(deep, plain, phi, q, self.form == "product"), epsilon)

    def _scales(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bandwidths s_phi and s_q, and eps, each ``[...]``."""
        params = self.params
        return params["phi"].square(), params["q"].square(), params["epsilon"].sigmoid()


def _linear(layer: Tree, x: Tensor) -> Tensor:
    return x @ layer["weight"].mT + layer["bias"].unsqueeze(-2)


def _off_diagonal_mean(square: Tensor) -> Tensor:
    n = square.shape[-1]
    total = square.sum(dim=(-2, -1)) - square.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return total / max(n * (n - 1), 1)
