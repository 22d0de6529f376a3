"""Methods from parts: terms of a loss, passes, and weights that stay local or are shared."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from typing import Any, Protocol

from torch import Tensor

from fl.api import trees
from fl.api.alteration import ALTERATION_STATES, Alterations
from fl.api.method import (
    PERSONAL_PARAMS,
    VARIABLE_GROUPS,
    BuildContext,
    Method,
    Pass,
    Refresh,
    Sampling,
    View,
    WeightedAverage,
)
from fl.api.network import Network, Output
from fl.api.optimizers import Optimizer, optimizer
from fl.api.protocols import Start, consumes_gradients
from fl.api.task import Task
from fl.api.term import (
    SHARED,
    AdaptiveTerm,
    Batch,
    Forward,
    Periodic,
    Reference,
    ReferenceTerm,
    TappedTerm,
    Term,
    task_loss,
)
from fl.api.trees import Rate, Tree
from fl.base.errors import FedloomError
from fl.base.schema import GLOBAL, PERSONAL


class Predicate(Protocol):
    """Which weights."""

    def __call__(self, name: str, /) -> bool:
        """name: in the module, of a parameter or a buffer."""


def all_weights(name: str) -> bool:
    """Every weight."""
    return True


def no_weights(name: str) -> bool:
    """No weight."""
    return False


def weights_in(names: Collection[str]) -> Predicate:
    """The weights of these names, such as ``network.head``."""
    return lambda name: name in names


def weights_not_in(names: Collection[str]) -> Predicate:
    """The weights of all other names."""
    return lambda name: name not in names


@dataclass(frozen=True)
class TrainingPass:
    """A pass that trains some parameters only.

    which: its parameters; epochs: how long (None: as long as the run's training settings say).
    """

    which: Predicate = all_weights
    epochs: int | None = None


def recipe(
    context: BuildContext,
    *,
    terms: tuple[Term, ...] = (task_loss,),
    local: Predicate = no_weights,
    passes: tuple[TrainingPass, ...] = (TrainingPass(),),
    keep_optimizer: bool = False,
    personal_params: Start | None = None,
) -> Method:
    """Local training on the sum of ``terms``, then the sample-weighted mean of what is shared.

    Terms that the study adds (``context.terms``) are added to them; see `AdaptiveTerm` for those with a
    state of their own. So are what it alters in features (``context.alterations``, `Alteration`).

    local: weights and buffers that never leave the client (all of them: no federation at all).
    passes: one after another; what a pass trains of the shared weights only its own upload holds,
        so all but the last must train local ones.
    keep_optimizer: the optimizer's state stays with the client from round to round; otherwise each
        round starts afresh. For methods of one pass. A study may say otherwise
        (`Training.keep_optimizer`).
    personal_params: from the first variables, parameters that are trained with the network's in
        every pass and never leave the client; terms find them in ``forward.personal_params``, views
        in the client's tree under `PERSONAL_PARAMS`.

    Trees may carry more than this knows of: what another function put into the server's, a client's
    or the work tree stays there, and whatever is uploaded is averaged.
    """
    keep = context.training.keep_optimizer
    if keep and len(passes) > 1:
        allowed = "false, or a method whose clients train in one pass"
        raise FedloomError(
            f"keep_optimizer: is true, and clients train in several. Allowed: {allowed}"
        )
    alterations = Alterations(context.alterations)
    # A view, so that building a method leaves the study's network as it is.
    network = context.network.view()
    network.alter(alterations.layers)
    for term in (*terms, *context.terms):
        if isinstance(term, TappedTerm | ReferenceTerm | AdaptiveTerm):
            network.tap(term.taps)
    parts = _Parts(
        network,
        optimizer(context.training),
        alterations,
        tuple(term for term in (*terms, *context.terms) if not isinstance(term, AdaptiveTerm)),
        tuple(term for term in (*terms, *context.terms) if isinstance(term, AdaptiveTerm)),
        local,
        passes,
        keep_optimizer if keep is None else keep,
        personal_params,
        context.task,
    )
    names = [name for kind in VARIABLE_GROUPS for name in context.network.names[kind]]
    return Method(
        parts.init, tuple(map(parts.make, passes)), WeightedAverage(_average), _views(names, local)
    )


@dataclass(frozen=True, eq=False)
class _Parts:
    """What a recipe is made of, and the functions of a `Method` that follow."""

    network: Network
    optimizer: Optimizer
    alterations: Alterations
    plain: tuple[Term, ...]
    adaptive: tuple[AdaptiveTerm, ...]
    local: Predicate
    passes: tuple[TrainingPass, ...]
    keep_optimizer: bool
    personal_params: Start | None
    task: Task

    @property
    def references(self) -> list[Reference]:
        compared = [term.reference for term in self.plain if isinstance(term, ReferenceTerm)]
        return compared + [term.reference for term in self.adaptive if term.reference]

    def init(self, variables: Tree) -> tuple[Tree, Tree]:
        server = select(variables, lambda name: not self.local(name))
        client = select(variables, self.local)
        personal_params = (
            {PERSONAL_PARAMS: self.personal_params(variables)} if self.personal_params else {}
        )
        client |= personal_params
        if self.keep_optimizer:
            # In the order in which `begin` puts the weights together.
            merged = merge(server, client)
            trained = {**_trained(merged, self.passes[0])[0], **personal_params}
            client["optimizer"] = self.optimizer.init(trained)
        if self.adaptive:
            client["terms"] = {term.name: term.start(variables) for term in self.adaptive}
        client |= self.alterations.start(variables)
        return server, client

    def make(self, trains: TrainingPass) -> Pass:
        def begin(server: Tree, client: Tree) -> Tree:
            return self.begin(trains, server, client)

        refreshes = tuple(_refresh(term, term.refresh) for term in self.adaptive if term.refresh)
        reference = self.reference if self.references else None
        return Pass(
            begin,
            self.loss,
            self.update,
            self.end,
            Sampling(epochs=trains.epochs, needs_keys=self.alterations.needs_keys),
            refreshes,
            reference,
        )

    def begin(self, trains: TrainingPass, server: Tree, client: Tree) -> Tree:
        variables = merge(server, client)
        trained, frozen = _trained(variables, trains)
        if self.personal_params:
            trained[PERSONAL_PARAMS] = client[PERSONAL_PARAMS]
        kept = client["optimizer"] if self.keep_optimizer else self.optimizer.init(trained)
        work = {"params": trained, "frozen": frozen, "optimizer": kept}
        states = {key: client[key] for key in ("terms", ALTERATION_STATES) if key in client}
        return {**work, **states, "buffers": variables["buffers"]}

    def reference(self, server: Tree, work: Tree, batch: Batch) -> Tree:
        @cache
        def see(model: str) -> Output:
            variables = server if model == SHARED else work[model]
            if len(variables["params"]) < len(self.network.names["params"]):
                raise FedloomError(
                    "terms: the method's server has no whole model, so that drift from it cannot "
                    "be measured. Allowed: a method that shares all weights"
                )
            return self.network.eval(variables["params"], variables["buffers"], batch["x"])

        return {name: leaf for ask in self.references for name, leaf in ask(see).items()}

    def loss(self, server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        params, personal_params = self._apart(work)
        batch = self.alterations.change_batch(batch)
        alter, met = self.alterations.functions(work.get(ALTERATION_STATES, {}), batch)
        output = self.network.train(
            params, work["buffers"], batch["x"], key=batch.get("key"), alter=alter
        )
        forward = Forward(
            self.network, output, params, server, work, batch, personal_params, self.task
        )
        values, seen = [term(forward) for term in self.plain], {}
        for term in self.adaptive:
            value, seen[term.name] = term.term(forward, work["terms"][term.name])
            values.append(value)
        return reduce(add, values), {"buffers": output.buffers, "seen": seen, "met": met}

    @consumes_gradients
    def update(self, server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        params, state = self.optimizer.step(work["params"], grads, work["optimizer"], lr)
        for term in self.adaptive:
            if term.refresh is None:
                work = _adapted(work, term, aux["seen"][term.name])
        work = self.alterations.adapt(work, aux.get("met", {}))
        return {**work, "params": params, "buffers": aux["buffers"], "optimizer": state}

    def end(self, server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        params, personal_params = self._apart(work)
        ordered = {name: params[name] for name in self.network.names["params"]}
        final = {"params": ordered, "buffers": work["buffers"]}
        kept = select(final, self.local)
        if self.personal_params:
            kept[PERSONAL_PARAMS] = personal_params
        if self.keep_optimizer:
            kept["optimizer"] = work["optimizer"]
        kept |= {key: work[key] for key in ("terms", ALTERATION_STATES) if key in work}
        return {**client, **kept}, select(final, lambda name: not self.local(name))

    def _apart(self, work: Tree) -> tuple[dict[str, Any], Tree]:
        """All of the network's parameters, and those beside them."""
        params = {**work["frozen"], **work["params"]}
        return params, params.pop(PERSONAL_PARAMS, {})


def _average(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
    return {**server, **trees.mean(uploads, n)}, dict(clients)


def _adapted(work: Tree, term: AdaptiveTerm, seen: Tree) -> Tree:
    state = term.adapt(work["terms"][term.name], seen)
    return {**work, "terms": {**work["terms"], term.name: state}}


def _refresh(term: AdaptiveTerm, when: Periodic) -> Refresh:
    def look(server: Tree, work: Tree, batch: Batch) -> Tree:
        params = {**work["frozen"], **work["params"]}
        params.pop(PERSONAL_PARAMS, None)
        variables = {"params": params, "buffers": work["buffers"]}
        return when.look(variables, batch)

    def adapt(work: Tree, seen: Tree) -> Tree:
        return _adapted(work, term, seen)

    return Refresh(when.interval, when.first_step, when.batch_count, look, adapt)


def _trained(variables: Tree, trains: TrainingPass) -> tuple[dict[str, Any], Tree]:
    params = variables["params"]
    trained = {name: tensor for name, tensor in params.items() if trains.which(name)}
    return trained, {name: tensor for name, tensor in params.items() if name not in trained}


def _views(names: list[str], local: Predicate) -> Mapping[str, View]:
    """Shared weights are evaluated as the global model, anything local as a personal one."""
    if any(local(name) for name in names):
        return {PERSONAL: personal}
    return {GLOBAL: shared}


def shared(server: Tree, client: Tree | None) -> Tree:
    """The view of the server's variables."""
    return select(server, all_weights)


def personal(server: Tree, client: Tree | None) -> Tree:
    """The view of a client's own variables, with the server's where it has none."""
    return merge(server, client or {})


def select(variables: Tree, chosen: Predicate) -> dict[str, Any]:
    """The chosen ones of some variables."""
    return {
        kind: {n: t for n, t in variables[kind].items() if chosen(n)} for kind in VARIABLE_GROUPS
    }


def merge(server: Tree, client: Tree) -> dict[str, Any]:
    """The server's variables, with the client's own in their place."""
    return {kind: {**server[kind], **client[kind]} for kind in VARIABLE_GROUPS}
