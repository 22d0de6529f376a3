"""Clients whose models are mixed after every round, by weights that follow from what they send.

pFedGraph and FedSaC share this procedure. A client trains its mixture, under a regulariser that
holds it near. It is evaluated with the model that it trained, before that model is mixed. Matrices
between clients are kept as traces if there are at most `MAX_TRACED_CLIENTS` clients; a client that
takes no part in a round has zeros in them.

If clients differ in modality, the weights that all modalities hold (`common_names`) may be mixed
over all clients by a matrix of its own, `COMMON_WEIGHTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NotRequired

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    PERSONAL,
    VARIABLE_GROUPS,
    AddedStates,
    BuildContext,
    ClientFacts,
    FedloomError,
    Forward,
    Method,
    Network,
    Pass,
    Recipe,
    RecipeServer,
    RecipeWork,
    Sweep,
    Term,
    Tree,
    Variables,
    Weights,
    all_weights,
    recipe,
    rng,
    select,
    single_pass,
    task_loss,
    trees,
)
from fl.blocks.exchange import send_all_but
from fl.blocks.mixing import mix, unit_directions

MAX_TRACED_CLIENTS = 200
"""The most clients for which matrices are traced: their size grows with the square."""

SMALLEST_NORM = 1e-8
"""Floor of the norms by which a cosine divides."""

Regulariser = Literal["mixture", "models", "released"]
"""The loss of a client, with W the network of the last round and theta_j its models.

`mixture`: f(w) - mu cos(w, sum_j W_ij theta_j), where the sum is the mixture that the client
received, in round 1 the initial model. `models`: f(w) - mu sum_j W_ij cos(w, theta_j), and f(w)
until the client has been in a network. `released`: `models` with + mu, which drives models apart.
"""

MixtureWeights = Callable[["MixtureServer", "MixtureClient", Any, Tensor], dict[str, Tensor]]
"""(server, clients, uploads, n) -> matrices between the round's participants by name, [K, K] each.

Row i of the matrix `WEIGHTS` has the weights of client i's mixture; row i of `COMMON_WEIGHTS`, if
there is such a matrix, the weights for parameters that all modalities hold.
"""

WEIGHTS, COMMON_WEIGHTS = "cooperation", "classifier"


class MixtureServer(RecipeServer):
    """State of the server, which beside these entries has a trace of each matrix by its name.

    Attributes:
        origin: Initial parameters, by name.
        round: Number of earlier rounds, int64 [].
    """

    origin: Weights
    round: Tensor


class MixturePayload(Variables):
    """What the server sends to one client: its mixture.

    Attributes:
        toward: Sum of the models' directions by which the client's loss is regularised, by name.
            It is absent if the regulariser is `mixture`.
    """

    toward: NotRequired[Weights]


class MixtureClient(ClientFacts, AddedStates):
    """State of a client.

    Attributes:
        trained: Model as its last training left it, which is evaluated.
        optimizer: State of the optimizer, if it is kept between rounds.
    """

    trained: Variables
    optimizer: NotRequired[Tree]


class MixtureWork(RecipeWork):
    """State of a client's pass.

    Attributes:
        toward: Direction v of `direction_regulariser`, all parameters in one row.
    """

    toward: Tensor


def mixture_method(
    context: BuildContext,
    mixture_weights: MixtureWeights,
    *,
    mu: float,
    regulariser: Regulariser,
    mixed_share: float = 1.0,
    matrices: tuple[str, ...] = (WEIGHTS,),
    sweep: Sweep | None = None,
    check_clients: Callable[[Tensor, Tensor], None] | None = None,
) -> Method:
    """Build a method of local training in which clients' models are mixed after every round.

    Args:
        context: The context in which the method is built.
        mixture_weights: A function that makes the matrices between the round's participants.
        mu: The weight of the regulariser.
        regulariser: The regulariser of local training.
        mixed_share: The share of the rounds after which models are mixed. In later rounds every
            client continues with its own model, as in fine-tuning.
        matrices: The names of the matrices that ``mixture_weights`` makes.
        sweep: A sweep after training. It finds the model in the upload and passes it on; the rest
            of its upload is for ``mixture_weights`` only.
        check_clients: A check of the samples of clients, see `fl.api.method.Method`.
    """
    # The released code adds the cosine that the paper subtracts.
    weight = -mu if regulariser == "released" else mu
    base = recipe(context, terms=(task_loss, direction_regulariser(weight)), local=all_weights)
    traced = matrices if context.clients <= MAX_TRACED_CLIENTS else ()
    steps = MixtureSteps(
        base,
        context,
        mixture_weights,
        holds_to_mixture=regulariser == "mixture",
        mixed_rounds=mixed_share * context.training.rounds,
        traced=traced,
    )
    local: Pass = single_pass(base)
    training = replace(local, begin=steps.begin, end=steps.end)
    return Method(
        steps.init,
        (training, sweep) if sweep else (training,),
        steps.aggregate,
        {PERSONAL: lambda server, client: client["trained"]},
        send=send_all_but("origin", "round", *matrices),
        trace=(lambda server: {name: server[name] for name in traced}) if traced else None,
        check_clients=check_clients,
    )


@dataclass(frozen=True, eq=False)
class MixtureSteps:
    """Functions of the method that `mixture_method` returns.

    Attributes:
        base: Local training under the regulariser.
        context: The context in which the method is built.
        mixture_weights: The function that makes the matrices.
        holds_to_mixture: Whether a client's model is held to the mixture that the client received,
            and not to the models of which it is made.
        mixed_rounds: Number of rounds after which models are mixed, perhaps not a whole one.
        traced: Names of the matrices that are kept as traces.
    """

    base: Recipe
    context: BuildContext
    mixture_weights: MixtureWeights
    holds_to_mixture: bool
    mixed_rounds: float
    traced: tuple[str, ...]

    def init(self, variables: Variables) -> tuple[Tree, Tree]:
        """Return the states before round 1: every client's mixture is the initial model."""
        server, client = self.base.init(variables)
        payload: MixturePayload = {"params": client["params"], "buffers": client["buffers"]}
        if not self.holds_to_mixture:
            payload["toward"] = trees.zeros_like(variables["params"])
        example = trees.leaves(variables["params"])[0]
        square = torch.zeros((self.context.clients,) * 2, device=example.device)
        added = {
            "origin": variables["params"],
            "round": torch.zeros((), dtype=torch.int64, device=example.device),
            **dict.fromkeys(self.traced, square),
        }
        without_model = send_all_but(*VARIABLE_GROUPS)(client)
        return {**server, **added}, {**without_model, "payload": payload, "trained": variables}

    def begin(self, server: MixtureServer, client: MixtureClient) -> MixtureWork:
        """Begin local training at the client's mixture."""
        payload = client["payload"]
        directions: Weights = payload["params" if self.holds_to_mixture else "toward"]
        # In the order of the weights in training.
        toward = one_row({name: directions[name] for name in payload["params"]})
        if self.holds_to_mixture:
            toward = F.normalize(toward, dim=0, eps=SMALLEST_NORM)
        work = single_pass(self.base).begin(server, {**client, **payload})
        return {**work, "toward": toward}

    def end(
        self, server: MixtureServer, client: MixtureClient, work: MixtureWork
    ) -> tuple[Tree, Variables]:
        """Keep the trained model, and upload it."""
        after, _ = single_pass(self.base).end(server, client, work)
        trained = select(after, all_weights)
        return {**send_all_but(*VARIABLE_GROUPS)(after), "trained": trained}, trained

    def aggregate(
        self, server: MixtureServer, clients: MixtureClient, uploads: Variables, n: Tensor
    ) -> tuple[Tree, MixtureClient]:
        """Mix the models of the participants: theta_i <- sum_j W_ij theta_j."""
        matrices = self.mixture_weights(server, clients, uploads, n)
        # A share of the rounds may be a whole number but for rounding.
        if self.mixed_rounds < self.context.training.rounds and (
            int(server["round"]) + 1e-9 >= self.mixed_rounds
        ):
            identity = torch.eye(len(n), dtype=matrices[WEIGHTS].dtype, device=n.device)
            matrices |= {name: identity for name in (WEIGHTS, COMMON_WEIGHTS) if name in matrices}
        payloads = mixtures(self.context, uploads, matrices)
        if not self.holds_to_mixture:
            toward = mix(matrices[WEIGHTS], unit_directions(uploads["params"]))
            payloads = {**payloads, "toward": toward}
        # Clients of a modality without participants keep their payloads.
        payloads = trees.overlay(clients["payload"], payloads)
        old: Tree = server
        traces = {
            name: among_all_clients(matrices[name], clients["id"], old[name])
            for name in self.traced
        }
        return {**old, **traces, "round": server["round"] + 1}, {**clients, "payload": payloads}


def mixtures(context: BuildContext, models: Variables, matrices: dict[str, Tensor]) -> Tree:
    """Return every client's mixture, with the mixture over all clients for common weights."""
    mixed = mix(matrices[WEIGHTS], select(models, all_weights))
    if COMMON_WEIGHTS not in matrices:
        return mixed
    common = select(models, common_names(context).__contains__)
    return trees.overlay(mixed, mix(matrices[COMMON_WEIGHTS], common))


def common_names(context: BuildContext) -> frozenset[str]:
    """Return the names of the weights and buffers that clients of every modality hold."""
    names = frozenset(name for kind in context.network.names.values() for name in kind)
    return names.difference(*context.missing_weights)


def compared_parameters(method: str, network: Network, layers: Sequence[str]) -> list[str]:
    """Return the names of the parameters of ``layers``; of all, if there are no layers.

    Raises:
        FedloomError: For a layer without parameters.
    """
    names = network.names["params"]
    for layer in layers:
        if not any(name.startswith(f"{layer}.") for name in names):
            allowed_layers = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in names))
            raise FedloomError(
                f"{method}: layers: the layer {layer!r} has no weights", allowed_layers
            )
    prefixes = tuple(f"{layer}." for layer in layers)
    return [name for name in names if not layers or name.startswith(prefixes)]


def draw_collaborators(ids: Tensor, count: int | None, seed: int, number: int) -> Tensor:
    """Draw the rows of a round's clients that cooperate, in ascending order; None: all rows."""
    rows = torch.arange(len(ids), device=ids.device)
    if count is None or count >= len(ids):
        return rows
    generator = rng.generator(seed, "collaborators", number)
    chosen = generator.choice(ids.sort().values.cpu().numpy(), count, replace=False)
    return rows[torch.isin(ids, torch.from_numpy(chosen).to(ids.device))]


def rows_by_modality(
    context: BuildContext, clients: ClientFacts, names: Sequence[str]
) -> list[tuple[Tensor, list[str]]]:
    """Return the rows of a round's clients and the names of their parameters, by modality.

    Modalities without a participant are left out. With one modality, the rows are those of all
    clients, and the names are all ``names``.
    """
    modality = clients.get("modality", torch.zeros_like(clients["id"]))
    return [
        (
            torch.nonzero(modality == number)[:, 0],
            [name for name in names if name not in missing_names],
        )
        for number, missing_names in enumerate(context.missing_weights or (frozenset(),))
        if bool((modality == number).any())
    ]


def weights_among(
    rows: Tensor,
    collaborators: Tensor,
    n: Tensor,
    mixture_weights: Callable[[Tensor, Tensor, Tensor], Tensor],
    matrices: tuple[Tensor, Tensor],
) -> Tensor:
    """Return mixture weights between some of a round's clients, and two matrices, [3, K, K].

    All other entries are zero.

    Args:
        rows: The rows of these clients.
        collaborators: The rows of those who cooperate; the others keep their own models.
        n: Training samples of all clients, [K].
        mixture_weights: A function of the shares of samples, [k], and of both matrices, [k, k],
            that returns the weights, [k, k].
        matrices: The two matrices between all clients, [K, K].
    """
    rows, collaborators = rows.to(n.device), collaborators.to(n.device)
    stack = torch.zeros(3, *matrices[0].shape, dtype=matrices[0].dtype, device=n.device)
    stack[0, rows, rows] = 1.0
    for index, matrix in enumerate(matrices, 1):
        stack[index][rows[:, None], rows] = matrix[rows[:, None], rows]
    chosen = collaborators[torch.isin(collaborators, rows)]
    if len(chosen):
        pairs = chosen[:, None], chosen
        shares = n[chosen] / n[chosen].sum()
        stack[0][pairs] = mixture_weights(shares, *(matrix[pairs] for matrix in matrices))
    return stack


def among_all_clients(matrix: Tensor, ids: Tensor, example: Tensor) -> Tensor:
    """Return a matrix between participants as a matrix between all clients."""
    full_matrix = torch.zeros_like(example)
    full_matrix[ids[:, None], ids] = matrix.to(full_matrix)
    return full_matrix


def direction_regulariser(weight: float) -> Term:
    """Return the term -weight <w, v> / |w|, with v the row in ``work["toward"]``.

    If v is a sum of a_j w_j / |w_j|, it is the sum of -weight a_j cos(w, w_j). If v is 0, it is 0.
    """

    def term(forward: Forward) -> Tensor:
        work: MixtureWork = forward.work
        unit = F.normalize(one_row(work["params"]), dim=0, eps=SMALLEST_NORM)
        return -weight * (unit * work["toward"]).sum()

    return term


def one_row(params: Tree) -> Tensor:
    """Return all parameters of a client in one row."""
    return torch.cat([leaf.flatten() for leaf in trees.leaves(params)])
