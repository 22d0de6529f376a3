"""Methods from parts: terms of a loss, phases, and weights that stay local or are shared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from torch import Tensor

from fl import trees
from fl.method import Averaging, Batch, Method, Pass, Refresh, Setting, View
from fl.parts.losses import Adaptive, Forward, Periodic, Term, cross_entropy
from fl.parts.optimizers import optimizer
from fl.schema import GLOBAL, PERSONAL
from fl.trees import Rate, Tree

KINDS = ("params", "buffers")

Predicate = Callable[[str], bool]
"""Which weights, by their name in the module."""


def everything(name: str) -> bool:
    """Every weight."""
    return True


def nothing(name: str) -> bool:
    """No weight."""
    return False


def within(names: Collection[str]) -> Predicate:
    """The weights of these names, such as ``network.head``."""
    return lambda name: name in names


def without(names: Collection[str]) -> Predicate:
    """The weights of all other names."""
    return lambda name: name not in names


@dataclass(frozen=True)
class Phase:
    """A stretch of a client's round in which only some parameters are trained.

    trains: which; epochs: how long (None: as long as the run's training settings say).
    """

    trains: Predicate = everything
    epochs: int | None = None


def recipe(
    setting: Setting,
    *,
    terms: tuple[Term, ...] = (cross_entropy,),
    local: Predicate = nothing,
    phases: tuple[Phase, ...] = (Phase(),),
    keep_optimizer: bool = False,
) -> Method:
    """Local training on the sum of ``terms``, then the sample-weighted mean of what is shared.

    Terms that the study adds (``setting.terms``) are added to them; see `Adaptive` for those with a
    state of their own.

    local: weights and buffers that never leave the client (all of them: no federation at all).
    phases: one after another; what a phase trains of the shared weights only its own upload holds,
        so all but the last must train local ones.
    keep_optimizer: the optimizer's state stays with the client from round to round; otherwise each
        round starts afresh. For methods of one phase.

    Trees may carry more than this knows of: what another function put into the server's, a client's
    or the work tree stays there, and whatever is uploaded is averaged.
    """
    network, optim = setting.network, optimizer(setting.training)
    summed = (*terms, *setting.terms)
    plain = [term for term in summed if not isinstance(term, Adaptive)]
    adaptive = {term.name: term for term in summed if isinstance(term, Adaptive)}

    def init(variables: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
        client = select(variables, local)
        if keep_optimizer:
            client["optimizer"] = optim.init(_trained(variables, phases[0])[0])
        if adaptive:
            client["terms"] = {name: term.start(variables) for name, term in adaptive.items()}
        return select(variables, lambda name: not local(name)), client

    def loss(server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, dict[str, Any]]:
        params = {**work["frozen"], **work["params"]}
        output = network.train(params, work["buffers"], batch["x"], key=batch.get("key"))
        forward = Forward(network, output, params, server, work, batch)
        values, seen = [term(forward) for term in plain], {}
        for name, term in adaptive.items():
            value, seen[name] = term.term(forward, work["terms"][name])
            values.append(value)
        return reduce(add, values), {"buffers": output.buffers, "seen": seen}

    def update(server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> dict[str, Any]:
        params, state = optim.step(work["params"], grads, work["optimizer"], lr)
        for name, term in adaptive.items():
            if term.refresh is None:
                work = _adapted(work, term, aux["seen"][name])
        return {**work, "params": params, "buffers": aux["buffers"], "optimizer": state}

    def end(server: Tree, client: Tree, work: Tree) -> tuple[dict[str, Any], dict[str, Any]]:
        params = {**work["frozen"], **work["params"]}
        ordered = {name: params[name] for name in network.names["params"]}
        final = {"params": ordered, "buffers": work["buffers"]}
        kept = select(final, local)
        if keep_optimizer:
            kept["optimizer"] = work["optimizer"]
        if adaptive:
            kept["terms"] = work["terms"]
        return {**client, **kept}, select(final, lambda name: not local(name))

    def make(phase: Phase) -> Pass:
        def begin(server: Tree, client: Tree) -> dict[str, Any]:
            variables = merge(server, client)
            trained, frozen = _trained(variables, phase)
            kept = client["optimizer"] if keep_optimizer else optim.init(trained)
            work = {"params": trained, "frozen": frozen, "optimizer": kept}
            terms = {"terms": client["terms"]} if adaptive else {}
            return {**work, **terms, "buffers": variables["buffers"]}

        refreshes = tuple(_refresh(t, t.refresh) for t in adaptive.values() if t.refresh)
        return Pass(begin, loss, update, end, phase.epochs, refreshes)

    def aggregate(
        server: Tree, clients: Tree, uploads: Tree, n: Tensor
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return {**server, **trees.mean(uploads, n)}, dict(clients)

    names = [name for kind in KINDS for name in network.names[kind]]
    passes = tuple(make(phase) for phase in phases)
    return Method(init, passes, Averaging(aggregate), _views(names, local))


def _adapted(work: Tree, term: Adaptive, seen: Tree) -> dict[str, Any]:
    state = term.adapt(work["terms"][term.name], seen)
    return {**work, "terms": {**work["terms"], term.name: state}}


def _refresh(term: Adaptive, when: Periodic) -> Refresh:
    def look(server: Tree, work: Tree, batch: Batch) -> dict[str, Any]:
        variables = {"params": {**work["frozen"], **work["params"]}, "buffers": work["buffers"]}
        return when.look(variables, server, batch)

    def adapt(work: Tree, seen: Tree) -> dict[str, Any]:
        return _adapted(work, term, seen)

    return Refresh(when.every, when.first, when.batches, look, adapt)


def _trained(variables: Tree, phase: Phase) -> tuple[dict[str, Any], dict[str, Any]]:
    params = variables["params"]
    trained = {name: tensor for name, tensor in params.items() if phase.trains(name)}
    return trained, {name: tensor for name, tensor in params.items() if name not in trained}


def _views(names: list[str], local: Predicate) -> Mapping[str, View]:
    """Shared weights are evaluated as the global model, anything local as a personal one."""
    if any(local(name) for name in names):
        return {PERSONAL: personal}
    return {GLOBAL: shared}


def shared(server: Tree, client: Tree | None) -> dict[str, Any]:
    """The view of the server's variables."""
    return select(server, everything)


def personal(server: Tree, client: Tree | None) -> dict[str, Any]:
    """The view of a client's own variables, with the server's where it has none."""
    return merge(server, client or {})


def select(variables: Tree, chosen: Predicate) -> dict[str, Any]:
    """The chosen ones of some variables."""
    return {kind: {n: t for n, t in variables[kind].items() if chosen(n)} for kind in KINDS}


def merge(server: Tree, client: Tree) -> dict[str, Any]:
    """The server's variables, with the client's own in their place."""
    return {kind: {**server[kind], **client[kind]} for kind in KINDS}
