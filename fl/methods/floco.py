"""Floco: clients train a simplex of heads, each in the part of it that suits its samples.

Grinwald, Wiesner, Nakajima. Federated Learning over Connected Modes. NeurIPS 2024.
arXiv:2403.03333.

Family: mixture of clients. Exchanged: body, several heads; down, a point among the heads. Local:
nothing. Key: `rho`.

The head is a mixture of M endpoints, by a random point of the simplex for every batch. After a
share of the rounds all clients train once more, from one model. What this makes of the endpoints is
reduced to M principal components, which are projected on the simplex, and each client draws from
then on near its own point. The shared model is evaluated at the centre of the simplex, a client's
at its point. The first endpoint is the model's initial head, the others are heads of new models.

Points are drawn inside the simplex. In the authors' code (dennis-grinwald/floco, a25b3a1) those
near a client's point may leave it, and the endpoints have a common bias. Its Floco+, which adds
personal models as Ditto does, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TypedDict, cast

import torch
from torch import Tensor

from fl.api import (
    BuildContext,
    ClientFacts,
    Count,
    Forward,
    Method,
    NonNegative,
    Pass,
    Phase,
    Recipe,
    RecipeClient,
    RecipeServer,
    RecipeWork,
    Share,
    Variables,
    Weights,
    declare,
    recipe,
    rng,
    shared_model,
    single_pass,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.linear_layers import head_outputs, head_parameters
from fl.blocks.mixing import client_rows, project_to_simplex
from fl.blocks.solution_simplex import draw_near, mixed_head

SMALLEST_DISTANCE = 1e-4
"""Floor of distances between points, as in the authors' code."""
EQUAL_SHARE = 1 - 1e-6
"""Share of the largest entry of a direction from which on an entry counts as large."""
SIZES = 1000
"""Number of sizes of a simplex that are tried, as in the authors' code."""
LARGEST_STACK = 2**22
"""Most numbers in a stack of differences between points."""


# These keys have spaces, so they cannot be attributes of a class.
Regions = TypedDict("Regions", {"has regions": Tensor})
Region = TypedDict("Region", {"has region": Tensor})


class FlocoServer(RecipeServer, Regions):
    """State of the server, with ``has regions``: whether clients' points were found, bool [].

    Attributes:
        points: Points of all clients in the simplex, [clients, M].
        shared_params: All endpoints but the first, by name in the head, [M - 1, ...].
    """

    points: Tensor


class FlocoPayload(Region):
    """What the server sends to one client, with ``has region``: as in `FlocoServer`.

    Attributes:
        point: The client's point, [M].
    """

    point: Tensor


class FlocoWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        payload: What the server sent to this client.
    """

    payload: FlocoPayload


class Endpoints(TypedDict):
    """Upload of a client: the endpoints after its training.

    Attributes:
        first: The first one, by name in the head.
        others: All others, as in `FlocoServer`.
    """

    first: Weights
    others: Weights


@declare("global", "personal", title="Floco")
class Floco:
    """FedAvg of a simplex of heads.

    Attributes:
        endpoints: Number M of endpoints; 1 is FedAvg.
        tau: Share of the rounds after which clients get points (the authors: 250 of 500 rounds).
        rho: Largest distance of a draw from a client's point (the authors: .01 to .5, by data set).
    """

    endpoints: Count = 10
    tau: Share = 0.5
    rho: NonNegative = 0.1

    def build(self, context: BuildContext) -> Method:
        """Return FedAvg with the loss at sum_m alpha_m h_m, and a phase that finds the points."""
        start = partial(other_endpoints, context, endpoints=self.endpoints)
        base = recipe(context, terms=(self.loss,), shared_params=start)
        local = single_pass(base)
        steps = FlocoSteps(base, context, self.endpoints)
        step: Pass = replace(
            local, begin=steps.begin, sampling=replace(local.sampling, needs_keys=True)
        )
        first_round = int(self.tau * context.training.rounds) + 1
        send = send_all_but("points", "has regions")
        phase = Phase(
            (replace(step, end=steps.send_endpoints),),
            steps.find_points,
            lambda round_: round_ == first_round,
            send,
            payload,
            all_clients=True,
        )
        return replace(
            base,
            init=steps.init,
            passes=(step,),
            earlier_phases=(phase,),
            send=send,
            payload=payload,
            views={"global": steps.centre_model, "personal": steps.own_model},
        )

    def loss(self, forward: Forward) -> Tensor:
        """Return the loss of the head sum_m alpha_m h_m, for an alpha that is drawn."""
        work: FlocoWork = forward.work
        key, region = forward.batch["key"][0], work["payload"]
        alpha = draw_near(key, region["point"].double(), region["has region"], self.rho)
        first = head_parameters(forward.network, forward.params)
        head = mixed_head(first, forward.shared_params, alpha)
        return forward.task.loss(head_outputs(head, forward.output.features), forward.batch)


@dataclass(frozen=True, eq=False)
class FlocoSteps:
    """Functions of Floco's phases and views.

    Attributes:
        base: FedAvg of body and endpoints.
        context: The context in which the method is built.
        endpoints: Number M of endpoints.
    """

    base: Recipe
    context: BuildContext
    endpoints: int

    def init(self, variables: Variables) -> tuple[FlocoServer, RecipeClient]:
        """Return FedAvg's states; all points are the centre."""
        server, client = self.base.init(variables)
        leaf = trees.leaves(variables["params"])[0]
        centre = leaf.new_full((self.context.clients, self.endpoints), 1 / self.endpoints)
        return {**server, "points": centre, "has regions": centre.sum() < 0}, client

    def begin(self, server: FlocoServer, client: RecipeClient) -> FlocoWork:
        """Begin local training, with the client's point."""
        region = cast(FlocoPayload, client["payload"])
        return {**single_pass(self.base).begin(server, client), "payload": region}

    def send_endpoints(
        self, server: FlocoServer, client: RecipeClient, work: FlocoWork
    ) -> tuple[RecipeClient, Endpoints]:
        """Upload the trained endpoints, and keep nothing of this training."""
        _, upload = single_pass(self.base).end(server, client, work)
        head = head_parameters(self.context.network, upload["params"])
        return client, {"first": dict(head), "others": upload["shared_params"]}

    def find_points(
        self, server: FlocoServer, clients: RecipeClient, uploads: Endpoints, n: Tensor
    ) -> tuple[FlocoServer, RecipeClient]:
        """Find each client's point."""
        found = client_points(uploads, clients["id"], self.endpoints).to(server["points"])
        points = server["points"].index_copy(0, clients["id"], found)
        has_regions = torch.ones_like(server["has regions"])
        return {**server, "points": points, "has regions": has_regions}, clients

    def centre_model(self, server: FlocoServer, client: object) -> Variables:
        """Return the model at the centre of the simplex, as a view."""
        return self.at(server, torch.full_like(server["points"][0], 1 / self.endpoints))

    def own_model(self, server: FlocoServer, client: RecipeClient) -> Variables:
        """Return the model at the client's point, as a view."""
        return self.at(server, point_of(server, client))

    def at(self, server: FlocoServer, alpha: Tensor) -> Variables:
        """Return the model with the head sum_m alpha_m h_m."""
        network, model = self.context.network, shared_model(server, None)
        params = model["params"]
        head = mixed_head(head_parameters(network, params), server["shared_params"], alpha)
        replaced = {
            name: head[name.rpartition(".")[2]]
            for name in network.names["params"]
            if name in network.head
        }
        return {**model, "params": {**params, **replaced}}


def point_of(server: FlocoServer, client: ClientFacts) -> Tensor:
    """Return the client's point, [M]."""
    return server["points"].index_select(0, client["id"].reshape(1))[0]


def payload(server: FlocoServer, client: ClientFacts) -> FlocoPayload:
    """Return what the server sends to one client."""
    return {"point": point_of(server, client), "has region": server["has regions"]}


def other_endpoints(
    context: BuildContext, variables: Variables, endpoints: int
) -> dict[str, Tensor]:
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


def client_points(uploads: Endpoints, ids: Tensor, count: int) -> Tensor:
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
