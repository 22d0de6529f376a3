"""MMD-D: a discrepancy whose kernel looks through a small network that is trained to tell apart.

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

from fl.parts.distances import squared_distances
from fl.trees import Tree

HIDDEN, FEATURES = 10, 50
BANDWIDTHS = {"phi": 0.005, "q": 2048.0}
RIDGE = 1e-8
"""What is added to the variance in equation 3 (Liu et al. 2020, equation 5)."""

Form = Literal["product", "sum"]
"""Whether q multiplies both terms of the kernel, as in the released code, or stands alone."""


@dataclass(frozen=True)
class DeepKernel:
    """A kernel with its parameters; making one costs nothing, so training makes one a step.

    ``product``: k(a, b) = [(1 - eps) exp(-|phi a - phi b|^2 / s_phi) + eps] exp(-|a - b|^2 / s_q);
    ``sum``: (1 - eps) exp(-|phi a - phi b|^2 / s_phi) + eps exp(-|a - b|^2 / s_q) (equation 2).

    params: a tree as `start` gives it, with or without the leading dimensions of the samples.
    ``featurizer``: phi, linear layers d-10-10-10-50 with softplus between them; ``epsilon``: the
    logit of eps; ``phi``, ``q``: square roots of the bandwidths, as in the released code.
    Samples x and y have as many rows, ``[..., n, d]``; results are ``[...]``.
    """

    params: Tree
    form: Form = "product"

    @staticmethod
    def start(width: int, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
        """Parameters to begin with, for features of ``width``; the same for the same seed.

        Bandwidths are .005 (phi) and 2048 (q), eps is below 1e-10. On the CPU.
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

        Unbiased, may be negative; 0 for one row.
        """
        return _off_diagonal_mean(self._terms(x, y))

    def objective(self, x: Tensor, y: Tensor) -> Tensor:
        """MMD-D^2 / sigma, what training the kernel maximises (equation 3).

        sigma^2 = 4 (mean_s r_s^2 - (mean_s r_s)^2) + 1e-8, r_s the mean of h(s, t) over all t.
        """
        terms = self._terms(x, y)
        rows = terms.mean(dim=-1)
        variance = 4 * (rows - rows.mean(dim=-1, keepdim=True)).square().mean(dim=-1)
        return _off_diagonal_mean(terms) / (variance + RIDGE).sqrt()

    def featurize(self, x: Tensor) -> Tensor:
        """phi(x), ``[..., n, 50]``."""
        layers = list(self.params["featurizer"].values())
        for layer in layers[:-1]:
            x = F.softplus(_linear(layer, x))
        return _linear(layers[-1], x)

    def _terms(self, x: Tensor, y: Tensor) -> Tensor:
        """h(s, t), ``[..., n, n]``; kernels are held as k - 1, as in `fl.parts.mmd`."""
        phi, q, logit = (self.params[key][..., None, None, None] for key in ("phi", "q", "epsilon"))
        plain = squared_distances(x, y) / q.square()
        deep = squared_distances(self.featurize(x), self.featurize(y)) / phi.square()
        if self.form == "product":
            deep = deep + plain
        kernels = (-logit).sigmoid() * torch.expm1(-deep) + logit.sigmoid() * torch.expm1(-plain)
        within_x, within_y, there, back = kernels.unbind(-3)
        return (within_x - there) + (within_y - back)


def _linear(layer: Tree, x: Tensor) -> Tensor:
    return x @ layer["weight"].mT + layer["bias"].unsqueeze(-2)


def _off_diagonal_mean(square: Tensor) -> Tensor:
    n = square.shape[-1]
    total = square.sum(dim=(-2, -1)) - square.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return total / max(n * (n - 1), 1)
