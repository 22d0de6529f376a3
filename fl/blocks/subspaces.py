"""Subspaces: the few directions in which a client's features vary most, and angles between them.

Miao, Ben-Israel. On Principal Angles between Subspaces in R^n. Linear Algebra and its Applications
171 (1992), 81-98. Björck, Golub. Numerical Methods for Computing Angles between Linear Subspaces.
Mathematics of Computation 27 (1973), 579-594: the cosines of the angles are singular values.
"""

from __future__ import annotations

from typing import Literal, TypedDict

import torch
from torch import Tensor

from fl.api import Batch, FedloomError, Network, Sweep, Tree, Variables, rng
from fl.blocks.linear_layers import feature_width

Angles = Literal["svd", "greedy"]

TINY = 1e-10
"""Variance below this share of the features' mean square is rounding alone."""


def feature_moments(features: Tensor, batch: Batch) -> FeatureMoments:
    """Sum moments of features [b, d] over the samples that count."""
    weight = batch["weight"].to(torch.float64)
    x = features.flatten(1).to(torch.float64)
    weighed = x * weight[:, None]
    return {"second": weighed.T @ x, "first": weighed.sum(0), "count": weight.sum()}


class FeatureMoments(TypedDict):
    """Sums over samples, in double precision.

    Attributes:
        second: Sum of x x' over features x, [d, d].
        first: Sum of x, [d].
        count: Number of samples, [].
    """

    second: Tensor
    first: Tensor
    count: Tensor


def direction_sweep(network: Network, k: int, centred: bool, max_samples: int | None) -> Sweep:
    """Return a sweep for the k directions in which the features of an uploaded model vary most.

    It adds them to the upload, as ``basis`` [k, d]. Features are the classifier's input in
    evaluation mode.

    Args:
        network: The network.
        k: The number of directions.
        centred: Whether directions are those of the features minus their mean.
        max_samples: The most samples of a client, drawn again in every round; None: all.
    """

    def look(server: Tree, client: Tree, upload: Variables, batch: Batch) -> FeatureMoments:
        output = network.eval(upload["params"], upload["buffers"], batch["x"])
        return feature_moments(output.features, batch)

    def end(
        server: Tree, client: Tree, upload: Variables, totals: FeatureMoments
    ) -> tuple[Tree, Tree]:
        mean = totals["first"] / totals["count"].clamp(min=1) * (1.0 if centred else 0.0)
        basis = principal_directions(totals["second"], mean, totals["count"], k)
        return client, {**upload, "basis": basis}

    return Sweep(look, end, max_samples=max_samples)


def check_width(method: str, network: Network, k: int, crop: float = 1.0) -> None:
    """Raise `FedloomError` if the classifier has fewer than ``k`` features, also after ``crop``."""
    features = feature_width(network, network.init(0)["params"])
    if k > features:
        problem = f"{method}: k is {k}, but {features} features go into the classifier"
        raise FedloomError(problem, f"1 to {features}")
    if k > cropped_width(features, crop):
        remaining = cropped_width(features, crop)
        problem = f"{method}: crop: {crop:g} leaves {remaining} of {features} features"
        raise FedloomError(problem, advice=f"leave at least {k} features for k = {k} directions")


def cropped_width(features: int, crop: float) -> int:
    """Return the number of features that a ``crop`` leaves, at least one."""
    return max(1, round(crop * features))


def disguise_directions(
    bases: Tensor, ids: Tensor, noise: float, crop: float, seed: int, number: int
) -> Tensor:
    """Return directions as the server sees them if clients disguise them, [K, k, features kept].

    Every client adds noise of its own and leaves out features, the same ones as all others, so that
    angles are comparable. The remaining directions are made orthonormal again, one after the other.

    Args:
        bases: Orthonormal rows, [K, k, d].
        ids: The clients' numbers, [K].
        noise: The expected length of the Gaussian noise that is added to a direction of length 1.
        crop: The share of the features that is kept.
        seed: The run's seed.
        number: The round.
    """
    _, k, d = bases.shape
    if noise:
        generators = [rng.generator(seed, "noise on directions", i, number) for i in ids.tolist()]
        added = torch.stack(
            [torch.from_numpy(generator.normal(size=(k, d))) for generator in generators]
        )
        bases = bases + added.to(bases) * noise / d**0.5
    if crop < 1:
        generator = rng.generator(seed, "features of directions", number)
        kept_features = torch.from_numpy(generator.permutation(d)[: cropped_width(d, crop)])
        bases = bases[:, :, kept_features.to(bases.device)]
    columns, triangle = torch.linalg.qr(bases.mT)
    signs = torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return (columns * signs[:, None, :]).mT


def check_samples(method: str, k: int, counts: Tensor, clients: Tensor) -> None:
    """Raise `FedloomError` if a client has fewer training samples than ``k``.

    See `fl.api.protocols.CheckClients`.
    """
    sizes = counts.sum(1)[clients]
    for row in torch.nonzero(sizes < k)[:1, 0].tolist():
        problem = f"{method}: client {int(clients[row])} has {int(sizes[row])} training samples"
        raise FedloomError(problem, f"k = {k} or more")


def principal_directions(second_moment: Tensor, mean: Tensor, count: Tensor, k: int) -> Tensor:
    """First k principal directions of some samples, [k, d]: orthonormal rows, largest first.

    In every row, the entry with the largest absolute value is positive. If the sums are not finite,
    the directions are not finite either.

    Args:
        second_moment: The sum of x x' over the samples, [d, d].
        mean: The centre of the samples, [d]; zeros: they are not centred.
        count: The number of samples.
        k: The number of directions.
    """
    scatter = second_moment - count * mean[:, None] * mean[None, :]
    is_finite = scatter.isfinite().all()
    scatter = torch.where(is_finite, (scatter + scatter.T) / 2, 0)
    square = torch.where(is_finite, second_moment.diagonal().sum(), 0)
    vectors = torch.linalg.eigh(_settle_order(scatter, TINY * square)).eigenvectors
    rows = vectors.T.flip(0)[:k]
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    return torch.where(is_finite, rows * torch.where(largest < 0, -1.0, 1.0), torch.nan)


def _settle_order(scatter: Tensor, bound: Tensor) -> Tensor:
    """Return a matrix with the same directions in the same order, [d, d].

    Directions whose value is at most ``bound`` come in the order of the features, so that rounding
    does not decide which are taken. Directions above the bound have values from 2 to 3, the others
    less than 1.
    """
    values, vectors = torch.linalg.eigh(scatter)
    kept_values = torch.where(values > bound, 2 + values / values[-1].clamp(min=1e-300), 0)
    null = (vectors * (kept_values == 0).to(kept_values.dtype)) @ vectors.T
    ramp = torch.arange(len(values), 0, -1, device=values.device, dtype=values.dtype)
    return (vectors * kept_values) @ vectors.T + (null * (ramp / (len(values) + 1))) @ null


def complementarity(bases: Tensor, method: Angles = "svd") -> Tensor:
    """Similarity of the clients' subspaces: cos(mean principal angle) of each pair, [K, K].

    1 is the same subspace. 0 is at right angles on average, which complements most. The result is
    NaN for a basis that is not finite.

    Args:
        bases: Orthonormal rows, [K, k, d].
        method: `svd` takes the principal angles, which depend on the subspaces alone. `greedy`
            pairs the vectors themselves, the largest of their signed cosines first, and so depends
            on the rotation and the signs of a basis.
    """
    bases = bases.to(torch.float64)
    is_finite = bases.isfinite().flatten(1).all(1)
    bases = torch.where(is_finite[:, None, None], bases, 0)
    clients, k, _ = bases.shape
    first, second = torch.triu_indices(clients, clients, offset=1, device=bases.device)
    first_bases, second_bases = bases[first], bases[second]
    cosines = first_bases @ second_bases.mT
    angles = (
        _greedy_angles(cosines, k)
        if method == "greedy"
        else _principal_angles(first_bases, second_bases, cosines)
    )
    values = angles.mean(1).cos()
    matrix = torch.eye(clients, dtype=bases.dtype, device=bases.device)
    matrix[first, second] = matrix[second, first] = values
    return torch.where(is_finite[:, None] & is_finite[None, :], matrix, torch.nan)


def _principal_angles(first_bases: Tensor, second_bases: Tensor, cosines: Tensor) -> Tensor:
    """Principal angles of pairs of bases, [P, k]: large ones by cosines, small ones by sines.

    A cosine near 1 has lost half of the digits of its angle (Björck and Golub 1973).
    """
    large = torch.linalg.svdvals(cosines).clamp(max=1)
    small = torch.linalg.svdvals(first_bases - cosines @ second_bases).flip(-1)
    return torch.where(large > 0.7, small.clamp(max=1).arcsin(), large.arccos())


def _greedy_angles(cosines: Tensor, k: int) -> Tensor:
    """Angles of k entries of each matrix [P, k, k], [P, k].

    The largest entry comes first, then the largest in no row and no column of earlier ones.
    """
    remaining, angles = cosines.clone(), []
    pairs = torch.arange(len(remaining), device=remaining.device)
    for _ in range(k):
        value, position = remaining.flatten(1).max(1)
        angles.append(value)
        remaining[pairs, position // k, :] = -torch.inf
        remaining[pairs, :, position % k] = -torch.inf
    return torch.stack(angles, dim=1).clamp(-1, 1).arccos()
