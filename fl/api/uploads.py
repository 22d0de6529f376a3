"""Upload filters and aggregations: what happens to clients' uploads before the server averages.

A study can add them to any method whose server needs only a mean of the uploads
(`fl.api.method.MeanBased`). An upload is one row of numbers. For weights, the row contains their
change since the server sent them; everything else is in it as it is. Whole numbers, such as
counters, are in no row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fl.api.method import BuildContext
from fl.api.protocols import Batch, Combine
from fl.api.trees import Tree
from fl.base import rng
from fl.base.errors import FedloomError
from fl.pytorch import keyed

UPLOAD_STATE = "wire"
"""Key in the server's and the clients' trees: states of upload filters, the round, attackers."""


@dataclass(frozen=True)
class UploadSize:
    """Size of an upload in bits.

    Attributes:
        number_count: How many numbers are sent.
        bits_per_number: Bits of each of them.
        extra_bits: Bits that are sent in addition.
    """

    number_count: int
    bits_per_number: int
    extra_bits: int = 0

    @property
    def total(self) -> int:
        """All bits of the upload."""
        return self.number_count * self.bits_per_number + self.extra_bits


@dataclass(frozen=True)
class RoundUploads:
    """The uploads of one round, which upload filters change one after another.

    Attributes:
        rows: The uploads of the K participants, [K, d].
        weights: Their weights in the mean, [K].
        ids: The ids of the participants.
        round: Number of the round, 1, 2, ...
        seed: Seed of the run.
        clients: Number of all clients, participants or not.
        client_states: State of the filter at each participant, stacked.
        server_state: State of the filter on the server.
        norm_bound: Largest norm of a row, a scalar, if a filter has clipped the rows.
        count_noise: Deviation of the noise on the share of clients that this filter has counted.
    """

    rows: Tensor
    weights: Tensor
    ids: tuple[int, ...]
    round: int
    seed: int
    clients: int
    client_states: Tree = field(default_factory=dict)
    server_state: Tree = field(default_factory=dict)
    norm_bound: Tensor | None = None
    count_noise: float = 0.0

    def uniform(self, name: str, of_server: bool = False) -> Tensor:
        """Draw numbers in [0, 1) that depend on seed, name, client and round only.

        Args:
            name: Name of the random stream.
            of_server: Draw one row for the server instead of a row for each participant.

        Returns:
            Numbers, float64 [K, d], or [1, d] for the server.
        """
        return keyed.uniform(self._keys(name, of_server), 0, self.rows.shape[1:])

    def normal(self, name: str, of_server: bool = False) -> Tensor:
        """Draw standard normal numbers by the transform of Box and Muller.

        Box and Muller. A Note on the Generation of Random Normal Deviates. Annals of Mathematical
        Statistics 29, 1958.

        Args:
            name: Name of the random stream.
            of_server: Draw one row for the server instead of a row for each participant.

        Returns:
            Numbers, float64 [K, d], or [1, d] for the server.
        """
        keys, shape = self._keys(name, of_server), self.rows.shape[1:]
        radius = (-2 * torch.log1p(-keyed.uniform(keys, 0, shape))).sqrt()
        return radius * torch.cos(2 * math.pi * keyed.uniform(keys, 1, shape))

    def attacker_mask(self, share: float) -> Tensor:
        """Whether each row is an attacker's, bool [K]; see the function `attacker_mask`."""
        mask = attacker_mask(self.seed, share, self.clients)
        return mask[list(self.ids)].to(self.rows.device)

    def _keys(self, name: str, of_server: bool) -> Tensor:
        """Keys of the random numbers: one for each participant, or one for the server."""
        senders: list[tuple[int, ...]] = [()] if of_server else [(client,) for client in self.ids]
        keys = [rng.torch_seed(self.seed, name, *sender, self.round) for sender in senders]
        return torch.tensor(keys, device=self.rows.device)


def attacker_mask(seed: int, share: float, clients: int) -> Tensor:
    """Draw the clients that attack.

    The attackers of a smaller share are among those of a larger one. All filters of a run draw the
    same clients.

    Args:
        seed: Seed of the run.
        share: Share of all clients that attack.
        clients: Number of all clients.

    Returns:
        Whether each client attacks, bool [clients].
    """
    order = rng.generator(seed, "attackers").permutation(clients)
    mask = torch.zeros(clients, dtype=torch.bool)
    mask[torch.from_numpy(order[: round(share * clients)])] = True
    return mask


def check_attackers(name: str, share: float, clients: int) -> None:
    """Refuse a share of attackers that is no client at all.

    Args:
        name: Name of the upload filter.
        share: Share of all clients that attack.
        clients: Number of all clients.

    Raises:
        FedloomError: If the share is above 0, and its number of clients is rounded to 0.
    """
    if share > 0 and not attacker_mask(0, share, clients).any():
        raise FedloomError(
            f"upload_filters.{name}.share: is {share:g}, which is no attacker among {clients} "
            "clients",
            f"0, or {1 / clients:.3g} and more",
        )


@dataclass(frozen=True)
class UploadFilter:
    """A change of the uploads of a round, or of the training samples of attackers.

    Attributes:
        name: Name of the filter's states and of its random numbers.
        apply: Function from the uploads to the changed uploads.
        upload_size: Function from the size of an upload before the filter to the size after it.
        init_client_state: Function from a row of zeros, [d], to the state that each client begins
            with.
        init_server_state: Function from a row of zeros, [d], to the state on the server in round 1.
        attacker_share: Share of clients that attack, see `attacker_mask`; ``change_batch`` changes
            their training samples.
        change_batch: Function from a batch of an attacker to a batch with other labels.
        bounds_norm: Whether the filter sets ``RoundUploads.norm_bound``.
        count_noise: The ``RoundUploads.count_noise`` that the filter sets; None: it counts nothing.
        noise_multiplier: Deviation of the noise that the filter adds to the sum, in multiples of
            the norm bound; 0 adds none.
    """

    name: str
    apply: Callable[[RoundUploads], RoundUploads] = lambda uploads: uploads
    upload_size: Callable[[UploadSize], UploadSize] = lambda size: size
    init_client_state: Callable[[Tensor], Mapping[str, Tensor]] = lambda row: {}
    init_server_state: Callable[[Tensor], Mapping[str, Tensor]] = lambda row: {}
    attacker_share: float = 0.0
    change_batch: Callable[[Batch], Batch] | None = None
    bounds_norm: bool = False
    count_noise: float | None = None
    noise_multiplier: float = 0.0


@dataclass(frozen=True)
class Aggregation:
    """A rule by which the server combines uploads, in place of their mean.

    Attributes:
        combine: Function from the uploads and their weights to the row that replaces the mean.
        min_participants: Number of participants that each round must have.
    """

    combine: Combine
    min_participants: int = 1


def per_round(context: BuildContext) -> int:
    """Return how many clients take part in each round."""
    return context.training.participants(context.participants)


def without_upload_state(tree: Tree) -> Tree:
    """Return a tree without the state of upload filters, as the method itself knows it."""
    return {key: leaf for key, leaf in tree.items() if key != UPLOAD_STATE}


def check_noise_on_count(
    clip: str, count_noise: float, multiplier: float, participants: int
) -> None:
    """Refuse noise on the mean that the noise on a clip's count of clients reaches alone.

    Args:
        clip: Name of the upload filter before the noise, which counts the clients within its norm.
        count_noise: Deviation of the noise on the share of clients that it counts.
        multiplier: Multiplier of the noise on the mean.
        participants: Number of clients that take part in a round.

    Raises:
        FedloomError: If the multiplier is at least 2 x count_noise x participants.
    """
    bound = 2 * count_noise * participants
    if multiplier >= bound:
        raise FedloomError(
            f"upload_filters.noise.multiplier: is {multiplier:g}, which the noise on the count of "
            "clients reaches alone",
            f"less than {bound:g}" if bound else "",
            f"set {clip}.count_noise above {multiplier / (2 * participants):g}",
        )
