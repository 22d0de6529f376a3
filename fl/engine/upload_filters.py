"""Upload filters and aggregations, wrapped around a finished method.

All work happens in the aggregate of the last phase, where all uploads of a round are available, so
that backends agree. Only the labels of attackers are changed where clients train. See
`fl.api.uploads` for the interface of filters and aggregations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import BuildContext, Method, Pass
from fl.api.protocols import (
    Batch,
    consumes_gradients,
    is_consuming_gradients,
    stack_gradients_of,
    with_stack_gradients,
)
from fl.api.trees import Rate, Tree
from fl.api.uploads import (
    UPLOAD_STATE,
    Aggregation,
    RoundUploads,
    UploadFilter,
    UploadSize,
    attacker_mask,
    check_attackers,
    check_noise_on_count,
    without_upload_state,
)
from fl.base.errors import FedloomError
from fl.engine.state import returned_states
from fl.engine.upload_rows import UploadLayout, reason_against_rows

KEYS = "upload_filters, aggregation"
"""The keys of a study that this module serves, for errors."""

ROUND, ATTACKERS, FILTER_STATES = "round", "attackers", "kept"
"""Keys in the server's tree under `UPLOAD_STATE`: completed rounds; masks of attackers; states of
the filters.
"""


def with_upload_filters(
    method: Method,
    context: BuildContext,
    title: str,
    filters: Sequence[UploadFilter],
    aggregation: Aggregation | None,
) -> Method:
    """Wrap a method so that its uploads pass the study's upload filters and aggregation.

    Args:
        method: The finished method.
        context: What the method was built from.
        title: Name of the method, for errors.
        filters: The upload filters, in the order in which they act.
        aggregation: The rule that replaces the mean of uploads; None: the mean stays.

    Returns:
        The wrapped method.

    Raises:
        FedloomError: If the server of the method needs more than a mean of the uploads, or if noise
            would not cover what one client can change.
    """
    if reason := reason_against_rows(method, context):
        raise _unsuitable(title, reason)
    _check_noise(filters, aggregation, context)
    _check_dropped(filters, aggregation, context)
    layout = UploadLayout.of(method, context)
    if not layout.float_indices:
        raise _unsuitable(title, "its clients send nothing")
    if layout.scaling:
        problem = f"its clients send a number, {layout.scaling}, that scales what else they send"
        raise _unsuitable(title, problem)
    if layout.counter_bytes and filters[-1:] and filters[-1].noise_multiplier:
        raise FedloomError(
            "upload_filters.noise: clients send counters of batch normalisation without noise",
            advice="choose a model without batch normalisation, or a method that keeps it local, "
            "such as fedbn",
        )
    return _FilteredMethod(method, context, layout, tuple(filters), aggregation).method()


def _unsuitable(title: str, problem: str) -> FedloomError:
    return FedloomError(
        f"{KEYS}: {title} cannot use them, because {problem}",
        advice="choose a method whose server averages, such as fedavg, fedprox (without adapt and "
        "dissimilarity), scaffold, ditto, fedbn",
    )


def _check_noise(
    filters: Sequence[UploadFilter], aggregation: Aggregation | None, context: BuildContext
) -> None:
    """Refuse noise where the change that one client can make is not bounded."""
    noise_indices = [index for index, f in enumerate(filters) if f.noise_multiplier]
    if not noise_indices:
        return
    index, training = noise_indices[0], context.training
    if index == 0 or not filters[index - 1].bounds_norm:
        raise FedloomError(
            "upload_filters.noise: noise needs clipping directly before it; otherwise one client "
            "can change the sum by more than the noise covers",
            advice="put clip or adaptive-clip directly before it",
        )
    if index + 1 < len(filters):
        raise FedloomError(
            f"upload_filters.{filters[index + 1].name}: follows noise, which the server adds",
            advice="put it before the clip",
        )
    if aggregation is not None:
        raise FedloomError(
            "aggregation: is set together with noise, whose scale is that of a mean",
            advice="remove one of the two",
        )
    if training.weighting != "uniform":
        raise FedloomError(
            f"weighting: is {training.weighting}, but noise needs clients of equal weights",
            "uniform",
        )


def _check_dropped(
    filters: Sequence[UploadFilter], aggregation: Aggregation | None, context: BuildContext
) -> None:
    """Refuse rounds that lose clients where the number of clients matters."""
    training, problem = context.training, ""
    if any(upload_filter.noise_multiplier for upload_filter in filters):
        problem = "noise divides by a fixed number of clients"
    elif aggregation is not None and aggregation.min_participants > 1:
        problem = f"aggregation needs {aggregation.min_participants} clients in every round"
    if problem and training.stragglers and training.partial_work == "dropped":
        advice = "choose another value, or stragglers: 0"
        raise FedloomError(f"partial_work: is dropped, but {problem}", advice=advice)


@dataclass(frozen=True, eq=False)
class _FilteredMethod:
    """Makes the functions of the wrapped method.

    Attributes:
        inner: The method without filters.
        context: What it was built from.
        layout: How its uploads become rows.
        filters: The upload filters, in the order in which they act.
        aggregation: The rule that replaces the mean; None: the mean stays.
    """

    inner: Method
    context: BuildContext
    layout: UploadLayout
    filters: tuple[UploadFilter, ...]
    aggregation: Aggregation | None

    @property
    def attacks(self) -> list[UploadFilter]:
        """The filters that change the training samples of attackers."""
        return [upload_filter for upload_filter in self.filters if upload_filter.change_batch]

    def method(self) -> Method:
        """Return the wrapped method."""
        passes = tuple(self._wrap_pass(p) for p in self.inner.passes if isinstance(p, Pass))
        return replace(
            self.inner,
            init=self.init,
            passes=passes,
            aggregate=self.aggregate,
            send=self.send,
            check_clients=self.check_clients,
            upload_bytes=self.upload_bytes,
        )

    def check_clients(self, counts: Tensor, clients: Tensor) -> None:
        """Refuse too few participants for the aggregation, and too little noise on a count."""
        if self.inner.check_clients:
            self.inner.check_clients(counts, clients)
        participants = self.context.training.participants(len(clients))
        if self.aggregation and participants < self.aggregation.min_participants:
            raise FedloomError(
                f"aggregation: needs {self.aggregation.min_participants} clients in a round, but "
                f"{participants} take part",
                advice="choose fewer attackers or chosen clients, or more clients in a round",
            )
        for f in self.filters:
            check_attackers(f.name, f.attacker_share, self.context.clients)
        for clip, noise in pairwise(self.filters):
            if clip.count_noise is not None and noise.noise_multiplier:
                check_noise_on_count(
                    clip.name, clip.count_noise, noise.noise_multiplier, participants
                )

    def upload_bytes(self, upload: Tree) -> int:
        """Return the bytes of an upload after all filters."""
        bits = 8 * self.layout.zeros.element_size()
        upload_size = UploadSize(self.layout.zeros.numel(), bits)
        for upload_filter in self.filters:
            upload_size = upload_filter.upload_size(upload_size)
        return -(-upload_size.total // 8) + self.layout.counter_bytes

    def init(self, variables: Tree) -> tuple[Tree, Tree]:
        """Return the first states of server and client, with the states of the filters."""
        server, client = self.inner.init(variables)
        row = self.layout.zeros.to(trees.leaves(variables)[0].device)
        seed, clients = self.context.seed, self.context.clients
        upload_state: dict[str, Tensor | Tree] = {
            ROUND: torch.zeros((), dtype=torch.int64, device=row.device)
        }
        if self.attacks:
            upload_state[ATTACKERS] = {
                attack.name: attacker_mask(seed, attack.attacker_share, clients).to(row.device)
                for attack in self.attacks
            }
        server_states = {f.name: dict(f.init_server_state(row)) for f in self.filters}
        client_states = {f.name: dict(f.init_client_state(row)) for f in self.filters}
        if any(server_states.values()):
            upload_state[FILTER_STATES] = _drop_empty(server_states)
        if any(client_states.values()):
            client = {**client, UPLOAD_STATE: _drop_empty(client_states)}
        return {**server, UPLOAD_STATE: upload_state}, client

    def send(self, server: Tree) -> Tree:
        """Return what the server sends; clients of attacks also learn who attacks."""
        inner_server = without_upload_state(server)
        message = dict(self.inner.send(inner_server)) if self.inner.send else inner_server
        masks = server[UPLOAD_STATE].get(ATTACKERS)
        return {**message, UPLOAD_STATE: masks} if masks else message

    def aggregate(self, server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        """Apply the filters and the aggregation, then let the method aggregate."""
        inner_server, upload_state = without_upload_state(server), server[UPLOAD_STATE]
        rows = self.layout.rows(inner_server, uploads)
        server_states = dict(upload_state.get(FILTER_STATES, {}))
        client_states = dict(clients.get(UPLOAD_STATE, {}))
        round_ = int(upload_state[ROUND]) + 1
        ids = tuple(clients["id"].tolist())
        round_uploads = RoundUploads(rows, n, ids, round_, self.context.seed, self.context.clients)
        for upload_filter in self.filters:
            name = upload_filter.name
            round_uploads = upload_filter.apply(
                replace(
                    round_uploads,
                    client_states=client_states.get(name, {}),
                    server_state=server_states.get(name, {}),
                )
            )
            if round_uploads.client_states:
                client_states[name] = dict(round_uploads.client_states)
            if round_uploads.server_state:
                server_states[name] = dict(round_uploads.server_state)
        changed_rows, weights = round_uploads.rows, round_uploads.weights
        if self.aggregation:
            changed_rows = self.aggregation.combine(changed_rows, weights).expand_as(changed_rows)
        uploads = self.layout.with_rows(inner_server, uploads, changed_rows, changed_rows == rows)
        returned = self.inner.aggregate(
            inner_server, without_upload_state(clients), uploads, weights
        )
        new_server, new_clients = returned_states("aggregate", returned)
        upload_state = {**upload_state, ROUND: upload_state[ROUND] + 1}
        if server_states:
            upload_state[FILTER_STATES] = server_states
        if client_states:
            new_clients = {**new_clients, UPLOAD_STATE: client_states}
        return {**new_server, UPLOAD_STATE: upload_state}, new_clients

    def _wrap_pass(self, pass_: Pass) -> Pass:
        """Wrap a pass, which does not know of filters; batches of attackers are changed."""

        def begin(server: Tree, client: Tree) -> Tree:
            work = pass_.begin(without_upload_state(server), without_upload_state(client))
            masks = server.get(UPLOAD_STATE, {})
            is_attacker = {name: _contains(mask, client["id"]) for name, mask in masks.items()}
            return {**work, UPLOAD_STATE: is_attacker} if is_attacker else work

        def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
            for attack in self.attacks:
                assert attack.change_batch is not None
                is_attacker = work[UPLOAD_STATE][attack.name]
                changed = attack.change_batch(batch)
                batch = {**batch, "y": torch.where(is_attacker, changed["y"], batch["y"])}
            return pass_.loss(without_upload_state(server), without_upload_state(work), batch)

        def gradients(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree, Tree] | None:
            if by_hand is None:
                return None
            return by_hand(without_upload_state(server), without_upload_state(work), batch)

        def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            inner_work = without_upload_state(work)
            new_work = pass_.update(without_upload_state(server), inner_work, grads, aux, lr)
            if UPLOAD_STATE in work:
                new_work = {**new_work, UPLOAD_STATE: work[UPLOAD_STATE]}
            return new_work

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            inner_trees = map(without_upload_state, (server, client, work))
            new_client, upload = pass_.end(*inner_trees)
            if UPLOAD_STATE in client:
                new_client = {**new_client, UPLOAD_STATE: client[UPLOAD_STATE]}
            return new_client, upload

        if is_consuming_gradients(pass_.update):
            update = consumes_gradients(update)
        by_hand = stack_gradients_of(pass_.loss)
        is_by_hand = by_hand and not self.attacks  # An attack changes batches.
        marked_loss = with_stack_gradients(loss, gradients) if is_by_hand else loss
        return replace(pass_, begin=begin, loss=marked_loss, update=update, end=end)


def _drop_empty(states: Mapping[str, Tree]) -> dict[str, Tree]:
    return {name: state for name, state in states.items() if state}


def _contains(mask: Tensor, client: Tensor) -> Tensor:
    """Whether a mask, bool [clients], contains a client; works under `torch.func.vmap`."""
    return (mask & (torch.arange(len(mask), device=mask.device) == client)).any()
