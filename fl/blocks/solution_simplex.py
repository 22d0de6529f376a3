"""A simplex of classifiers, whose points are mixtures, and each client's point of it.

Grinwald, Wiesner, Nakajima. Federated Learning over Connected Modes. NeurIPS 2024.
arXiv:2403.03333.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from fl.api import BuildContext, Tree, keyed, rng, trees
from fl.blocks.linear_layers import head_parameters
from fl.blocks.mixing import client_rows, project_to_simplex
from fl.pytorch.folding import call_on_stacks

POINT_STREAM = keyed.stream_number("point of a simplex")
SMALLEST_DISTANCE = 1e-4
"""Floor of distances between points, as in the authors' code."""
EQUAL_SHARE = 1 - 1e-6
"""Share of the largest entry of a direction from which on an entry counts as large."""
SIZES = 1000
"""Number of sizes of a simplex that are tried, as in the authors' code."""
LARGEST_STACK = 2**22
"""Most numbers in a stack of differences between points."""


def other_endpoints(context: BuildContext, variables: Tree, endpoints: int) -> dict[str, Tensor]:
    """Return the heads of new models, ``weight`` [M - 1, C, d] and ``bias`` [M - 1, C].

    Args:
        context: The context in which the method is built.
        variables: The initial model, whose head is the first endpoint.
        endpoints: Number M of endpoints.
    """
    network = context.network
    seeds = (rng.torch_seed(context.seed, "endpoint", number) for number in range(1, endpoints))
    fresh = [head_parameters(network, network.init(seed)["params"]) for seed in seeds]
    return {
        key: torch.stack([leaf, *(head[key].to(leaf) for head in fresh)])[1:]
        for key, leaf in head_parameters(network, variables["params"]).items()
    }


def mixed_head(first: Tree, endpoints: Tree, alpha: Tensor) -> dict[str, Tensor]:
    """Return the mixture of the first endpoint and the other ``endpoints`` by a point alpha."""
    return {
        key: call_on_stacks(_mixture, alpha.to(leaf), leaf, endpoints[key])
        for key, leaf in first.items()
    }


def _mixture(alpha: Tensor, first: Tensor, endpoints: Tensor) -> Tensor:
    """Return the mixture of a leaf [..., *shape] and endpoints [..., M - 1, *shape] by [..., M]."""
    dim = alpha.dim() - 1
    leaves = torch.cat([first.unsqueeze(dim), endpoints], dim).flatten(dim + 1)
    return torch.matmul(alpha.unsqueeze(dim), leaves).reshape(first.shape)


def client_points(uploads: Tree, ids: Tensor, count: int) -> Tensor:
    """Return the clients' points, [K, M], by the principal components of what they sent.

    Args:
        uploads: Trained endpoints of all clients, stacked.
        ids: Numbers of the clients, [K].
        count: Number M of endpoints.
    """
    # In one order, because small simplices enlarge what rounding makes of another.
    order = torch.argsort(ids)
    points = spread_on_simplex(principal_components(client_rows(trees.take(uploads, order)), count))
    return points[torch.argsort(order)]


def principal_components(rows: Tensor, count: int) -> Tensor:
    """Return the first principal components of the rows, [K, count]; 0 beyond their rank.

    The direction of a component is positive in the first entry of largest size, up to rounding: the
    weights of two classes move by equal amounts to both sides, so that several are largest.

    Args:
        rows: Vectors, [K, d].
        count: Number of components.
    """
    centred = rows.double() - rows.double().mean(0)
    coordinates, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    magnitudes = directions.abs()
    is_largest = magnitudes >= EQUAL_SHARE * magnitudes.amax(1, keepdim=True)
    largest = directions.gather(1, is_largest.int().argmax(1, keepdim=True))[:, 0]
    components = (coordinates * sizes * torch.where(largest < 0, -1.0, 1.0))[:, :count]
    return torch.nn.functional.pad(components, (0, count - components.shape[1]))


def riesz_energy(points: Tensor) -> Tensor:
    """Return sum_{i<j} 1 / ||p_i - p_j||^2 of points [..., K, M], [...]."""
    count = points.shape[-2]
    first, second = torch.triu_indices(count, count, 1, device=points.device)
    distances = (points[..., first, :] - points[..., second, :]).norm(dim=-1)
    return distances.clamp(min=SMALLEST_DISTANCE).pow(-2).sum(-1)


def spread_on_simplex(components: Tensor) -> Tensor:
    """Project vectors [K, M] on a simplex of the size at which they are farthest apart, [K, M].

    Of `SIZES` sizes up to 1, it is the one with the least `riesz_energy` of points divided by it.
    """
    clients, width = components.shape
    sizes = torch.linspace(1e-4, 1, SIZES, dtype=components.dtype, device=components.device)
    at_once = max(1, LARGEST_STACK // (clients**2 * width))
    energies = [
        riesz_energy(project_to_simplex(components / group[:, None, None]))
        for group in sizes.split(at_once)
    ]
    return project_to_simplex(components / sizes[torch.cat(energies).argmin()])


def draw_near(key: Tensor, point: Tensor, has_region: Tensor, radius: float) -> Tensor:
    """Draw a point of the simplex, uniformly or at most ``radius`` from a point, [M], float64.

    A uniform point is drawn towards the given one until their distance, the sum of absolute
    differences, is at most a uniform share of the radius.

    Args:
        key: Key of the draw, a scalar.
        point: The point, [M].
        has_region: Whether the draw is near the point, a scalar.
        radius: The largest distance.
    """
    return call_on_stacks(partial(_draw_near, radius), key, point, has_region)


def _draw_near(radius: float, key: Tensor, point: Tensor, has_region: Tensor) -> Tensor:
    """Draw points, [..., M], by keys [...], points [..., M], and whether each is near, [...]."""
    count = point.shape[-1] + 1
    numbers = 1 - keyed.uniform(keyed.derive_keys(key, POINT_STREAM), 0, (count,))
    exponential = -numbers[..., 1:].log()
    offset = exponential / exponential.sum(-1, keepdim=True) - point
    distance = offset.abs().sum(-1).clamp(min=torch.finfo(offset.dtype).tiny)
    share = (radius * numbers[..., 0] / distance).clamp(max=1)
    return point + torch.where(has_region, share, 1).unsqueeze(-1) * offset
