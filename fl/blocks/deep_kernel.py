"""MMD-D: a discrepancy whose kernel contains a network that is trained to separate two samples.

S. Ayromlou, D. B. Emerson. Adaptive Latent-Space Constraints in Personalized FL. 2025 (section
3.4), after F. Liu et al. Learning deep kernels for non-parametric two-sample tests. ICML 2020.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fl.api import Tree, trees
from fl.blocks.distances import three_distances
from fl.blocks.kernel_ratio import RatioInputs, paired_differences, ratio

HIDDEN, FEATURES = 10, 50
BANDWIDTHS = {"phi": 0.005, "q": 2048.0}
LAST_LAYER = "3"
"""The name of the last layer of the featurizer."""

Form = Literal["product", "sum"]
"""Whether q multiplies both terms of the kernel (the released code) or only the second one."""


@dataclass(frozen=True)
class DeepKernel:
    """A deep kernel with its parameters.

    With the form ``product``, k(a, b) = [(1 - eps) exp(-|phi a - phi b|^2 / s_phi) + eps] exp(-|a -
    b|^2 / s_q); with ``sum``, k(a, b) = (1 - eps) exp(-|phi a - phi b|^2 / s_phi) + eps exp(-|a -
    b|^2 / s_q) (equation 2).

    Samples x and y have the same number of rows, ``[..., n, d]``; results are ``[...]``. An
    instance costs nothing, so training creates one in each step.

    Attributes:
        params: A tree as `start` returns it, with or without the leading dimensions of the samples.
            ``featurizer``: phi, linear layers d-10-10-10-50 with softplus between them;
            ``epsilon``: the logit of eps; ``phi``, ``q``: the square roots of the bandwidths, as in
            the released code.
        form: The form of the kernel.
    """

    params: Tree
    form: Form = "product"

    def with_params(self, leaves: Sequence[Tensor]) -> DeepKernel:
        """Return the kernel with other parameters, in the order of `fl.api.trees.leaves`."""
        return DeepKernel(trees.unflatten(self.params, leaves), self.form)

    @staticmethod
    def start(width: int, seed: int, dtype: torch.dtype = torch.float32) -> Tree:
        """Draw initial parameters on the CPU by a seed.

        Bandwidths are .005 (phi) and 2048 (q), and eps is below 1e-10.

        Args:
            width: The number of features, d.
            seed: The seed of the random numbers.
            dtype: The type of the parameters.
        """
        sizes = pairwise((width, HIDDEN, HIDDEN, HIDDEN, FEATURES))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            layers = [nn.Linear(inputs, outputs, dtype=dtype) for inputs, outputs in sizes]
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

        It is unbiased and may be negative; for one row it is 0. It can be differentiated by x any
        number of times; y and the parameters are constants.
        """
        leaves = [leaf.detach() for leaf in trees.leaves(self.params)]
        value: Tensor = _MMD2.apply(x, y.detach(), self, *leaves)[0]  # type: ignore[no-untyped-call]
        return value

    def mmd2_and_slope(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return `mmd2` and its gradient by x, written out by hand."""
        layers = self._layers(torch.stack([x, y], -3))
        hidden_x, hidden_y = layers[-1].mT.unbind(-3)
        weight, n = self.params["featurizer"][LAST_LAYER]["weight"], x.shape[-2]
        metric, lead = weight.mT @ weight, x.shape[:-2]
        deep, plain = three_distances(hidden_x, hidden_y, metric), three_distances(x, y)
        s_phi, s_q, epsilon = (s.expand(lead)[..., None, None, None] for s in self._scales())
        deep_kernel, plain_kernel = -deep / s_phi, -plain / s_q
        if self.form == "product":
            deep_kernel = deep_kernel + plain_kernel
        deep_kernel, plain_kernel = deep_kernel.expm1(), plain_kernel.expm1()
        within_x, within_y, between = torch.lerp(deep_kernel, plain_kernel, epsilon).unbind(-3)
        pair_weights = (1 - torch.eye(n, dtype=x.dtype, device=x.device)) / max(n * (n - 1), 1)
        value = (pair_weights * ((within_x - between) + (within_y - between))).sum((-2, -1))
        deep_kernel, plain_kernel = (
            (1 - epsilon) * pair_weights * (deep_kernel + 1),
            epsilon * pair_weights * (plain_kernel + 1),
        )
        by_hidden = _slope(deep_kernel / -s_phi, hidden_x, hidden_y) @ metric
        plain_weights = deep_kernel + plain_kernel if self.form == "product" else plain_kernel
        by_x = _slope(plain_weights / -s_q, x, y)
        of_x = [layer.narrow(-3, 0, 1) for layer in layers]
        _, samples_gradient = self._slopes(of_x, by_hidden.mT.unsqueeze(-3))
        return value, by_x + samples_gradient.squeeze(-3).mT

    def objective(
        self, x: Tensor, y: Tensor, *, shift: int = 0, plain: Tensor | None = None
    ) -> Tensor:
        """MMD-D^2 / sigma, which training the kernel maximises (equation 3).

        sigma^2 = 4 (mean_s r_s^2 - (mean_s r_s)^2) + 1e-8, where r_s is the mean of h(s, t) over
        all t.

        Args:
            x: The first sample, ``[..., n, d]``.
            y: The second sample, ``[..., n, d]``.
            shift: The number of positions by which the rows of y are moved, as by `torch.roll`,
                before they are paired with those of x.
            plain: `fl.blocks.distances.three_distances` of x and y (unshifted), if the caller has
                them already.
        """
        return self.ascent(x, y, shift=shift, plain=plain)[0]

    def ascent(
        self, x: Tensor, y: Tensor, *, shift: int = 0, plain: Tensor | None = None
    ) -> tuple[Tensor, Tree]:
        """Return `objective` and its gradient by the parameters, for each leading dimension.

        The gradient is written out (see `fl.blocks.kernel_ratio`), and the samples are constants.
        """
        x, y = x.detach(), y.detach()
        plain = three_distances(x, y) if plain is None else plain.detach()
        paired_distances = paired_differences(x, y, shift).square().sum(-1)
        lead, weight = x.shape[:-2], self.params["featurizer"][LAST_LAYER]["weight"]
        weight = weight.expand(*lead, *weight.shape[-2:])
        phi, q, epsilon = (scale.expand(lead) for scale in self._scales())
        # Stacked, not joined: equal rows then have equal features to the last bit.
        layers = self._layers(torch.stack([x, y], -3))
        hidden_x, hidden_y = layers[-1].mT.unbind(-3)
        product = self.form == "product"
        value, gradient = ratio(
            RatioInputs(
                hidden_x, hidden_y, weight, phi, q, epsilon, plain, paired_distances, shift, product
            )
        )
        return value, {
            "featurizer": self._backward(
                layers, torch.stack([gradient.x, gradient.y], -3), gradient.weight
            ),
            "epsilon": gradient.epsilon * epsilon * (1 - epsilon),
            "phi": 2 * self.params["phi"] * gradient.phi,
            "q": 2 * self.params["q"] * gradient.q,
        }

    def _layers(self, samples: Tensor) -> list[Tensor]:
        """Return the input of each layer of phi, ``[..., samples, width, n]``.

        Samples are columns, because products of few rows are faster than those of few columns.
        """
        layers_out = [samples.mT]
        for layer in self._first_layers():
            weight, bias = layer["weight"].unsqueeze(-3), layer["bias"][..., None, :, None]
            layers_out.append(F.softplus(weight @ layers_out[-1] + bias))
        return layers_out

    def _slopes(self, layers: list[Tensor], gradient: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the gradients by each layer's output before its softplus, and by the samples.

        The last layer is left out.

        Args:
            layers: Inputs of the layers, see `_layers`.
            gradient: The gradient by the input of the last layer.
        """
        slopes: list[Tensor] = []
        for layer, layer_output in zip(
            reversed(self._first_layers()), reversed(layers[1:]), strict=True
        ):
            # The slope of a = softplus(z) is 1 - exp(-a).
            slopes.append(-gradient * torch.expm1(-layer_output))
            gradient = layer["weight"].mT.unsqueeze(-3) @ slopes[-1]
        return slopes[::-1], gradient

    def _backward(self, layers: list[Tensor], gradient: Tensor, by_weight: Tensor) -> Tree:
        """Return the gradient by the layers of phi.

        It follows from the gradients by the input of the last layer, ``[..., 2, n, 10]``, and by
        its weight. The bias of the last layer moves all features alike, so no distance depends on
        it.
        """
        slopes, _ = self._slopes(layers, gradient.mT)
        gradients = [
            {"weight": (slope @ layer_input.mT).sum(-3), "bias": slope.sum((-3, -1))}
            for slope, layer_input in zip(slopes, layers[:-1], strict=True)
        ]
        last_layer = {"weight": by_weight, "bias": torch.zeros_like(by_weight[..., 0])}
        return dict(zip(self.params["featurizer"], [*gradients, last_layer], strict=True))

    def _first_layers(self) -> list[Tree]:
        """Return all layers of phi but the last."""
        return [layer for name, layer in self.params["featurizer"].items() if name != LAST_LAYER]

    def _scales(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the bandwidths s_phi and s_q, and eps, each ``[...]``."""
        params = self.params
        return params["phi"].square(), params["q"].square(), params["epsilon"].sigmoid()


class _MMD2(torch.autograd.Function):
    """Autograd function of `DeepKernel.mmd2`; automatic differentiation takes twice as long."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor, kernel: DeepKernel, *leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the value and its gradient by x."""
        return kernel.with_params(leaves).mmd2_and_slope(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        x, y, ctx.kernel, *leaves = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y, output[1], *leaves)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        """Multiply the gradient by x with the gradient by the value."""
        x, y, slope, *leaves = ctx.saved_tensors
        no_gradients = (None,) * (2 + len(leaves))
        if gradient is None:
            return None, *no_gradients
        if torch.is_grad_enabled():  # So that it can be differentiated again.
            _, slope = ctx.kernel.with_params(leaves).mmd2_and_slope(x, y)
        return gradient[..., None, None] * slope, *no_gradients


def _slope(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Gradient by x of sum_st a_st |x_s - x_t|^2 - 2 b_st |x_s - y_t|^2.

    The weights are ``[..., 3, n, n]``: the first matrix is a, symmetric, and the last one b. If y
    is near x, a is near b; so the differences of these are taken first.
    """
    b = weights.select(-3, 2)
    drift = weights.select(-3, 0) - b
    return 4 * (drift.sum(-1, keepdim=True) * x - drift @ x + b @ (y - x))
