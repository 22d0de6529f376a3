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
from fl.parts.kernel_ratio import Inputs, moved_apart, ratio
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
        all t.

        Args:
            shift: By how many places the rows of y are moved, as by `torch.roll`, before they are
                paired with those of x.
            plain: `fl.parts.distances.three_distances` of x and y (unshifted), where the caller has
                them already.
        """
        return self.ascent(x, y, shift=shift, plain=plain)[0]

    def ascent(
        self, x: Tensor, y: Tensor, *, shift: int = 0, plain: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """`objective` and its gradient by the parameters, for each of the leading dimensions.

        The gradient is written out (see `fl.parts.kernel_ratio`), and the samples are constants.
        """
        x, y = x.detach(), y.detach()
        plain = three_distances(x, y) if plain is None else plain.detach()
        apart = moved_apart(x, y, shift).square().sum(-1)
        lead, weight = x.shape[:-2], self.params["featurizer"][LAST]["weight"]
        weight = weight.expand(*lead, *weight.shape[-2:])
        phi, q, epsilon = (scale.expand(lead) for scale in self._scales())
        # Stacked, not joined: rows that are alike then are so behind the layers, to the last bit.
        layers = self._layers(torch.stack([x, y], -3))
        hidden_x, hidden_y = layers[-1].mT.unbind(-3)
        product = self.form == "product"
        value, by = ratio(
            Inputs(hidden_x, hidden_y, weight, phi, q, epsilon, plain, apart, shift, product)
        )
        return value, {
            "featurizer": self._backward(layers, torch.stack([by.x, by.y], -3), by.weight),
            "epsilon": by.epsilon * epsilon * (1 - epsilon),
            "phi": 2 * self.params["phi"] * by.phi,
            "q": 2 * self.params["q"] * by.q,
        }

    def _features(self, samples: Tensor) -> Tensor:
        """phi of several samples of a client, ``[..., samples, n, 50]``."""
        last = self.params["featurizer"][LAST]
        weight, bias = last["weight"].unsqueeze(-3), last["bias"][..., None, None, :]
        return self._layers(samples)[-1].mT @ weight.mT + bias

    def _layers(self, samples: Tensor) -> list[Tensor]:
        """What each layer of phi takes, ``[..., samples, width, n]``: few rows, as their products
        are faster than those of few columns.
        """
        found = [samples.mT]
        for name, layer in self.params["featurizer"].items():
            if name != LAST:
                weight, bias = layer["weight"].unsqueeze(-3), layer["bias"][..., None, :, None]
                found.append(F.softplus(weight @ found[-1] + bias))
        return found

    def _backward(self, layers: list[Tensor], by: Tensor, by_weight: Tensor) -> dict[str, Any]:
        """The gradient by the layers of phi, from that by what the last one takes, ``[..., 2, n,
        10]``, and by its weight. Its bias moves all features alike, so no distance depends on it.
        """
        params, found, by = self.params["featurizer"], {}, by.mT
        steps = zip([name for name in params if name != LAST], pairwise(layers), strict=True)
        for name, (before, after) in reversed(list(steps)):
            by = -by * torch.expm1(-after)  # The slope of a = softplus(z) is 1 - exp(-a).
            found[name] = {"weight": (by @ before.mT).sum(-3), "bias": by.sum((-3, -1))}
            by = params[name]["weight"].mT.unsqueeze(-3) @ by
        found[LAST] = {"weight": by_weight, "bias": torch.zeros_like(by_weight[..., 0])}
        return {name: found[name] for name in params}

    def _terms(self, x: Tensor, y: Tensor) -> Tensor:
        """h(s, t), ``[..., n, n]``."""
        of_x, of_y = self._features(torch.stack([x, y], -3)).unbind(-3)
        deep = squared_distances(of_x, of_y)
        within_x, within_y, there, back = self._kernels(deep, squared_distances(x, y)).unbind(-3)
        return (within_x - there) + (within_y - back)

    def _kernels(self, deep: Tensor, plain: Tensor) -> Tensor:
        """k - 1 from squared distances of features and of samples, both ``[...]`` and more
        dimensions.
        """
        phi, q, epsilon = (trees.align(scale, deep) for scale in self._scales())
        near, far = deep / -phi, plain / -q
        if self.form == "product":
            near = near + far
        return torch.lerp(near.expm1(), far.expm1(), epsilon)

    def _scales(self) -> tuple[Tensor, Tensor, Tensor]:
        """Bandwidths s_phi and s_q, and eps, each ``[...]``."""
        params = self.params
        return params["phi"].square(), params["q"].square(), params["epsilon"].sigmoid()


def _off_diagonal_mean(square: Tensor) -> Tensor:
    n = square.shape[-1]
    total = square.sum(dim=(-2, -1)) - square.diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return total / max(n * (n - 1), 1)
