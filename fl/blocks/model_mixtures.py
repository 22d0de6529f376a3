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
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from fl.api import (
    MODALITY,
    PAYLOAD,
    PERSONAL,
    VARIABLE_GROUPS,
    BuildContext,
    FedloomError,
    Forward,
    Method,
    Network,
    Pass,
    Sweep,
    Term,
    Tree,
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

MixtureWeights = Callable[[Tree, Tree, Tree, Tensor], dict[str, Tensor]]
"""(server, clients, uploads, n) -> matrices between the round's participants by name, [K, K] each.

Row i of the matrix `WEIGHTS` has the weights of client i's mixture; row i of `COMMON_WEIGHTS`, if
there is such a matrix, the weights for parameters that all modalities hold. ``server["round"]`` is
the number of earlier rounds, ``server["origin"]`` the initial parameters.
"""

WEIGHTS, COMMON_WEIGHTS = "cooperation", "classifier"


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
    mixture = regulariser == "mixture"
    mu = -mu if regulariser == "released" else mu
    traced = matrices if context.clients <= MAX_TRACED_CLIENTS else ()
    without_model = send_all_but(*VARIABLE_GROUPS)
    base = recipe(context, terms=(task_loss, direction_regulariser(mu)), local=all_weights)
    local = single_pass(base)

    def init(variables: Tree) -> tuple[Tree, Tree]:
        server, client = base.init(variables)
        zero_direction = trees.apply(torch.zeros_like, variables["params"])
        payload = {**select(client, all_weights), **({} if mixture else {"toward": zero_direction})}
        example = trees.leaves(variables["params"])[0]
        square = torch.zeros((context.clients,) * 2, device=example.device)
        server_state = {
            "origin": variables["params"],
            "round": torch.zeros((), dtype=torch.int64, device=example.device),
            **dict.fromkeys(traced, square),
        }
        next_client = {**without_model(client), PAYLOAD: payload, "trained": variables}
        return {**server, **server_state}, next_client

    def begin(server: Tree, client: Tree) -> Tree:
        payload = client[PAYLOAD]
        directions = payload["params" if mixture else "toward"]
        # In the order of the weights in training.
        toward = _flat({name: directions[name] for name in payload["params"]})
        if mixture:
            toward = F.normalize(toward, dim=0, eps=SMALLEST_NORM)
        return {**local.begin(server, {**client, **payload}), "toward": toward}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        client_state, _ = local.end(server, client, work)
        trained = select(client_state, all_weights)
        return {**without_model(client_state), "trained": trained}, trained

    def aggregate(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        matrices = mixture_weights(server, clients, uploads, n)
        if mixed_share < 1 and int(server["round"]) + 1e-9 >= mixed_share * context.training.rounds:
            identity = torch.eye(len(n), dtype=matrices[WEIGHTS].dtype, device=n.device)
            matrices |= {name: identity for name in (WEIGHTS, COMMON_WEIGHTS) if name in matrices}
        mixtures = _mixtures(context, uploads, matrices)
        if not mixture:
            toward = mix(matrices[WEIGHTS], unit_directions(uploads["params"]))
            mixtures = {**mixtures, "toward": toward}
        traces = {
            name: _among_all_clients(matrices[name], clients["id"], server[name]) for name in traced
        }
        # Clients of a modality without participants keep their payloads.
        payloads = trees.overlay(clients[PAYLOAD], mixtures)
        next_server = {**server, **traces, "round": server["round"] + 1}
        return next_server, {**clients, PAYLOAD: payloads}

    views = {PERSONAL: lambda server, client: dict(client["trained"])}
    passes: tuple[Pass | Sweep, ...] = (replace(local, begin=begin, end=end),)
    return Method(
        init,
        (*passes, sweep) if sweep else passes,
        aggregate,
        views,
        send=send_all_but("origin", "round", *matrices),
        trace=(lambda server: {name: server[name] for name in traced}) if traced else None,
        check_clients=check_clients,
    )


def _mixtures(context: BuildContext, models: Tree, matrices: Tree) -> Tree:
    """Return every client's mixture, with the mixture over all clients for common weights."""
    mixtures = mix(matrices[WEIGHTS], select(models, all_weights))
    if COMMON_WEIGHTS not in matrices:
        return mixtures
    shared = select(models, common_names(context).__contains__)
    return trees.overlay(mixtures, mix(matrices[COMMON_WEIGHTS], shared))


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
    context: BuildContext, clients: Tree, names: Sequence[str]
) -> list[tuple[Tensor, list[str]]]:
    """Return the rows of a round's clients and the names of their parameters, by modality.

    Modalities without a participant are left out. With one modality, the rows are those of all
    clients, and the names are all ``names``.
    """
    modality = clients.get(MODALITY, torch.zeros_like(clients["id"]))
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


def _among_all_clients(matrix: Tensor, ids: Tensor, example: Tensor) -> Tensor:
    """Return a matrix between participants as a matrix between all clients."""
    full_matrix = torch.zeros_like(example)
    full_matrix[ids[:, None], ids] = matrix.to(full_matrix)
    return full_matrix


def direction_regulariser(weight: float) -> Term:
    """Return the term -weight <w, v> / |w|, with v the row in ``work["toward"]``.

    If v is a sum of a_j w_j / |w_j|, it is the sum of -weight a_j cos(w, w_j). If v is 0, it is 0.
    """

    def term(forward: Forward) -> Tensor:
        unit = F.normalize(_flat(forward.work["params"]), dim=0, eps=SMALLEST_NORM)
        return -weight * (unit * forward.work["toward"]).sum()

    return term


def _flat(params: Tree) -> Tensor:
    """Return all parameters of a client in one row."""
    return torch.cat([leaf.flatten() for leaf in trees.leaves(params)])
