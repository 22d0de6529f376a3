"""A method whose uploads cross a wire: stages change them, another row may stand for their mean.

All happens in the aggregate of the last phase, where all uploads of a round are at hand, so that
backends agree in it; only labels are changed where clients train. See `fl.api.uploads`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fl.api import trees
from fl.api.method import COUNTS, BuildContext, MeanBased, Method, Pass, Sweep, declaration_of
from fl.api.protocols import consumes_gradients, is_consuming_gradients
from fl.api.trees import Rate, Tree
from fl.api.uploads import (
    UPLOAD_STATE,
    Aggregation,
    RoundUploads,
    UploadFilter,
    UploadSize,
    attacker_mask,
)
from fl.base.errors import FedloomError

ROUND, ATTACKERS, KEPT = "round", "attackers", "kept"
"""In the server's tree under `UPLOAD_STATE`: rounds done; who attacks; what stages keep."""


def wired(
    method: Method,
    context: BuildContext,
    named: Any,
    stages: Sequence[UploadFilter | None],
    aggregation: Aggregation | None,
) -> Method:
    """The method with these stages, in their order, and that aggregation in place of the mean.

    Args:
        named: What it was built from.
        stages: None is one that changes nothing.

    Raises:
        FedloomError: For a method whose server wants more than a mean, and for noise whose effect
            nobody has bounded.
    """
    crossed = tuple(stage for stage in stages if stage is not None)
    if not crossed and aggregation is None:
        return method
    _check_method(method, context, declaration_of(named).title)
    _check_noise(crossed, aggregation, context)
    _check_dropped(crossed, aggregation, context)
    layout = _Layout.of(method, context)
    if not layout.floats:
        raise _refused(declaration_of(named).title, "its clients send nothing")
    if layout.scaling:
        problem = f"its clients send a number, {layout.scaling}, that scales what else they send"
        raise _refused(declaration_of(named).title, problem)
    if layout.counters and crossed[-1:] and crossed[-1].noise_multiplier:
        raise FedloomError(
            "upload_filters.noise: clients send counters of batch normalisation without noise",
            advice="choose a model without batch normalisation, or a method that keeps it local, "
            "such as fedbn",
        )
    return _Wired(method, context, layout, crossed, aggregation).method()


def without_wire(tree: Tree) -> dict[str, Any]:
    """A tree as the method knows it."""
    return {key: leaf for key, leaf in tree.items() if key != UPLOAD_STATE}


def _check_method(method: Method, context: BuildContext, title: str) -> None:
    """Refuse a method of which uploads in one phase and their mean are not all."""
    problem = ""
    if not isinstance(method.aggregate, MeanBased):
        problem = "its server does more than average what clients send"
    elif method.earlier_phases:
        problem = "its clients send in more than one phase of a round"
    elif method.payload is not None:
        problem = "its server makes something for each client alone"
    elif any(isinstance(pass_, Sweep) for pass_ in method.passes):
        problem = "its clients send what they see, not what they train"
    elif context.missing_weights:
        problem = "clients differ in modality, and do not send the same weights"
    if problem:
        raise _refused(title, problem)


def _refused(title: str, problem: str) -> FedloomError:
    return FedloomError(
        f"upload_filters, aggregation: {title} cannot use them, because {problem}",
        advice="choose a method whose server averages, such as fedavg, fedprox (without adapt and "
        "dissimilarity), scaffold, ditto, fedbn",
    )


def _check_noise(
    stages: Sequence[UploadFilter], aggregation: Aggregation | None, context: BuildContext
) -> None:
    """Refuse noise that hides no client, as what one client can change is not bounded."""
    noisy = [place for place, stage in enumerate(stages) if stage.noise_multiplier]
    if not noisy:
        return
    place, training = noisy[0], context.training
    if place == 0 or not stages[place - 1].bounds_norm:
        raise FedloomError(
            "upload_filters.noise: noise needs clipping directly before it; otherwise one client "
            "can change the sum by more than the noise covers",
            advice="put clip or adaptive-clip directly before it",
        )
    if place + 1 < len(stages):
        raise FedloomError(
            f"upload_filters.{stages[place + 1].name}: follows noise, which the server adds",
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
    stages: Sequence[UploadFilter], aggregation: Aggregation | None, context: BuildContext
) -> None:
    """Refuse rounds that lose clients where their number counts."""
    training, problem = context.training, ""
    if any(stage.noise_multiplier for stage in stages):
        problem = "noise divides by a fixed number of clients"
    elif aggregation is not None and aggregation.min_participants > 1:
        problem = f"aggregation needs {aggregation.min_participants} clients in every round"
    if problem and training.stragglers and training.partial_work == "dropped":
        advice = "choose another value, or stragglers: 0"
        raise FedloomError(f"partial_work: is dropped, but {problem}", advice=advice)


def check_count(clip: str, counted: float, multiplier: float, taking: int) -> None:
    """Refuse noise of which a clip that counts clients leaves none for the mean.

    Args:
        clip: The stage before, which adds noise of deviation `counted` to the share that it counts.
        multiplier: Of the noise; taking: how many clients take part in a round.
    """
    most = 2 * counted * taking
    if multiplier >= most:
        raise FedloomError(
            f"upload_filters.noise.multiplier: is {multiplier:g}, which the noise on the count of "
            "clients reaches alone",
            f"less than {most:g}" if most else "",
            f"set {clip}.count_noise above {multiplier / (2 * taking):g}",
        )


@dataclass(frozen=True)
class _Layout:
    """An upload as a row: its leaves in order, and which of them are weights that were sent.

    leaves: of an upload of a client that took no step; sent: by place, the path in the server's
    tree of those that are what the server sent; scaling: the name of a number among them that is
    of no weight, "" without one. A server that gets one multiplies means (FedNova's path) or
    divides them (FedFA's share), so that no other row may stand for what belongs to it.
    """

    leaves: tuple[Tensor, ...]
    sent: Mapping[int, tuple[str, ...]]
    scaling: str = ""

    @classmethod
    def of(cls, method: Method, context: BuildContext) -> _Layout:
        """That of a method."""
        with torch.no_grad():
            variables = context.network.init(0)
            server, client = method.init(variables)
            client = {
                **client,
                "id": torch.tensor(0),
                COUNTS: torch.zeros(context.classes, dtype=torch.int64),
            }
            server = method.send(server) if method.send else server
            upload: Tree = {}
            for pass_ in method.passes:
                assert isinstance(pass_, Pass)
                client, upload = pass_.end(server, client, pass_.begin(server, client))
        at = {id(leaf): path for path, leaf in _paths(server)}
        leaves = trees.leaves(upload)
        weights = {path[-1] for path, _ in _paths(variables)}
        scaling = [
            path[-1]
            for path, leaf in _paths(upload)
            if leaf.is_floating_point() and not leaf.ndim and path[-1] not in weights
        ]
        return cls(
            tuple(leaves),
            {place: at[id(leaf)] for place, leaf in enumerate(leaves) if id(leaf) in at},
            next(iter(scaling), ""),
        )

    @property
    def floats(self) -> list[int]:
        """The places of the leaves that are in a row."""
        return [place for place, leaf in enumerate(self.leaves) if leaf.is_floating_point()]

    @cached_property
    def zeros(self) -> Tensor:
        """A row of zeros, [d]."""
        return torch.cat([self.leaves[p].new_zeros(self.leaves[p].numel()) for p in self.floats])

    @property
    def counters(self) -> int:
        """Bytes of the leaves that are in no row."""
        floats = self.floats
        return sum(
            leaf.numel() * leaf.element_size()
            for place, leaf in enumerate(self.leaves)
            if place not in floats
        )

    def rows(self, server: Tree, uploads: Tree) -> Tensor:
        """Stacked uploads as rows, [K, d]."""
        leaves = trees.leaves(uploads)
        return torch.cat([self._row(server, leaves, p) for p in self.floats], dim=1)

    def uploads(self, server: Tree, before: Tree, rows: Tensor, changed: Tensor) -> dict[str, Any]:
        """The uploads of changed rows; what did not change is as it was sent, to the bit."""
        leaves, begin = trees.leaves(before), 0
        for place in self.floats:
            leaf = leaves[place]
            its = slice(begin, begin + leaf[0].numel())
            begin = its.stop
            new = changed[:, its].reshape(leaf.shape).to(leaf.dtype)
            if place in self.sent:
                new = new + _at(server, self.sent[place])
            stays = (changed[:, its] == rows[:, its]).reshape(leaf.shape)
            leaves[place] = torch.where(stays, leaf, new)
        return trees.unflatten(before, leaves)

    def _row(self, server: Tree, leaves: Sequence[Tensor], place: int) -> Tensor:
        leaf = leaves[place]
        leaf = leaf - _at(server, self.sent[place]) if place in self.sent else leaf
        return leaf.reshape(len(leaf), -1)


def _paths(tree: Tree, above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Tensor]]:
    paths: list[tuple[tuple[str, ...], Tensor]] = []
    for key, leaf in tree.items():
        inner = not isinstance(leaf, Tensor)
        paths += _paths(leaf, (*above, key)) if inner else [((*above, key), leaf)]
    return paths


def _at(tree: Any, path: Sequence[str]) -> Tensor:
    for key in path:
        tree = tree[key]
    assert isinstance(tree, Tensor)
    return tree


@dataclass(frozen=True, eq=False)
class _Wired:
    """What makes the functions of the new method."""

    inner: Method
    context: BuildContext
    layout: _Layout
    stages: tuple[UploadFilter, ...]
    aggregation: Aggregation | None

    @property
    def flipping(self) -> list[UploadFilter]:
        return [stage for stage in self.stages if stage.change_batch]

    def method(self) -> Method:
        passes = tuple(self._pass(p) for p in self.inner.passes if isinstance(p, Pass))
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
        if self.inner.check_clients:
            self.inner.check_clients(counts, clients)
        taking = max(1, round(self.context.training.participation * len(clients)))
        if self.aggregation and taking < self.aggregation.min_participants:
            raise FedloomError(
                f"aggregation: {taking} clients take part in a round. Allowed: "
                f"{self.aggregation.min_participants} or more, or fewer attackers or chosen"
            )
        for before, stage in zip(self.stages, self.stages[1:], strict=False):
            if before.count_noise is not None and stage.noise_multiplier:
                check_count(before.name, before.count_noise, stage.noise_multiplier, taking)

    def upload_bytes(self, upload: Tree) -> int:
        bits = 8 * self.layout.zeros.element_size()
        upload_size = UploadSize(self.layout.zeros.numel(), bits)
        for stage in self.stages:
            upload_size = stage.upload_size(upload_size)
        return -(-upload_size.total // 8) + self.layout.counters

    def init(self, variables: Tree) -> tuple[Tree, Tree]:
        server, client = self.inner.init(variables)
        row = self.layout.zeros.to(trees.leaves(variables)[0].device)
        seed, clients = self.context.seed, self.context.clients
        mine: dict[str, Any] = {ROUND: torch.zeros((), dtype=torch.int64, device=row.device)}
        if self.flipping:
            mine[ATTACKERS] = {
                stage.name: attacker_mask(seed, stage.attacker_share, clients).to(row.device)
                for stage in self.flipping
            }
        states = {stage.name: dict(stage.init_server_state(row)) for stage in self.stages}
        kept = {stage.name: dict(stage.init_client_state(row)) for stage in self.stages}
        if any(states.values()):
            mine[KEPT] = {name: state for name, state in states.items() if state}
        if any(kept.values()):
            client = {**client, UPLOAD_STATE: {name: its for name, its in kept.items() if its}}
        return {**server, UPLOAD_STATE: mine}, client

    def send(self, server: Tree) -> Tree:
        bare = without_wire(server)
        sent = dict(self.inner.send(bare)) if self.inner.send else bare
        told = server[UPLOAD_STATE].get(ATTACKERS)
        return {**sent, UPLOAD_STATE: told} if told else sent

    def aggregate(self, server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
        bare, mine = without_wire(server), server[UPLOAD_STATE]
        rows = self.layout.rows(bare, uploads)
        states, kept = dict(mine.get(KEPT, {})), dict(clients.get(UPLOAD_STATE, {}))
        number = int(mine[ROUND]) + 1
        ids = tuple(clients["id"].tolist())
        crossing = RoundUploads(rows, n, ids, number, self.context.seed, self.context.clients)
        for stage in self.stages:
            its = {
                "client_states": kept.get(stage.name, {}),
                "server_state": states.get(stage.name, {}),
            }
            crossing = stage.apply(replace(crossing, **its))
            if crossing.client_states:
                kept[stage.name] = dict(crossing.client_states)
            if crossing.server_state:
                states[stage.name] = dict(crossing.server_state)
        changed = crossing.rows
        if self.aggregation:
            changed = self.aggregation.combine(changed, crossing.weights).expand_as(changed)
        uploads = self.layout.uploads(bare, uploads, rows, changed)
        after, left = self.inner.aggregate(bare, without_wire(clients), uploads, crossing.weights)
        mine = {**mine, ROUND: mine[ROUND] + 1, **({KEPT: states} if states else {})}
        return {**after, UPLOAD_STATE: mine}, {**left, **({UPLOAD_STATE: kept} if kept else {})}

    def _pass(self, pass_: Pass) -> Pass:
        """The pass of clients that know nothing of a wire; attackers' batches are changed."""

        def begin(server: Tree, client: Tree) -> Tree:
            work = pass_.begin(without_wire(server), without_wire(client))
            told = server.get(UPLOAD_STATE, {})
            here = {name: _is_in(client["id"], those) for name, those in told.items()}
            return {**work, UPLOAD_STATE: here} if here else work

        def loss(server: Tree, work: Tree, batch: Mapping[str, Any]) -> tuple[Tensor, Tree]:
            for stage in self.flipping:
                assert stage.change_batch is not None
                other, attacks = stage.change_batch(batch), work[UPLOAD_STATE][stage.name]
                batch = {**batch, "y": torch.where(attacks, other["y"], batch["y"])}
            return pass_.loss(without_wire(server), without_wire(work), batch)

        def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
            after = pass_.update(without_wire(server), without_wire(work), grads, aux, lr)
            return {**after, UPLOAD_STATE: work[UPLOAD_STATE]} if UPLOAD_STATE in work else after

        def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
            bare = without_wire(server), without_wire(client), without_wire(work)
            left, upload = pass_.end(*bare)
            return (
                {**left, UPLOAD_STATE: client[UPLOAD_STATE]} if UPLOAD_STATE in client else left
            ), upload

        if is_consuming_gradients(pass_.update):
            update = consumes_gradients(update)
        return replace(pass_, begin=begin, loss=loss, update=update, end=end)


def _is_in(client: Tensor, those: Tensor) -> Tensor:
    """Whether a client is one of those, bool [clients]; a scalar, also under `torch.func.vmap`."""
    return (those & (torch.arange(len(those), device=those.device) == client)).any()
