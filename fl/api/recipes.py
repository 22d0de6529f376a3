"""Methods built from loss terms, passes, and a choice of weights that clients share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from typing import Protocol

from torch import Tensor

from fl.api import trees
from fl.api.alteration import ALTERATION_STATES, Alterations
from fl.api.method import (
    PERSONAL_PARAMS,
    SHARED_PARAMS,
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
    """Choice of weights by name."""

    def __call__(self, name: str, /) -> bool:
        """Whether a weight is chosen.

        Args:
            name: Name of a parameter or buffer in the module.
        """


def all_weights(name: str) -> bool:
    """Choose every weight."""
    return True


def no_weights(name: str) -> bool:
    """Choose no weight."""
    return False


def weights_in(names: Collection[str]) -> Predicate:
    """Choose the weights of these names, such as ``network.head``."""
    return lambda name: name in names


def weights_not_in(names: Collection[str]) -> Predicate:
    """Choose all weights but those of these names."""
    return lambda name: name not in names


@dataclass(frozen=True)
class TrainingPass:
    """Pass of a recipe that trains some of the parameters.

    Attributes:
        trained: The parameters that it trains.
        epochs: Number of epochs; None: as the run's training settings say.
    """

    trained: Predicate = all_weights
    epochs: int | None = None


def recipe(
    context: BuildContext,
    *,
    terms: tuple[Term | AdaptiveTerm, ...] = (task_loss,),
    local: Predicate = no_weights,
    passes: tuple[TrainingPass, ...] = (TrainingPass(),),
    keep_optimizer: bool = False,
    personal_params: Start | None = None,
    shared_params: Start | None = None,
) -> Method:
    """Build a method: local training on a sum of terms, then a mean of the shared weights.

    A client minimises the sum of ``terms`` and of the terms that the study adds
    (``context.terms``), with the study's alterations of features (``context.alterations``). The
    server averages uploads, weighted by numbers of training samples.

    Other functions may put more into the server's, a client's or the work tree: it stays there, and
    everything that is uploaded is averaged.

    Args:
        context: The context in which the method is built.
        terms: Terms of the loss; see `AdaptiveTerm` for terms with a state.
        local: Weights and buffers that never leave the client; all of them: no federation.
        passes: Passes of a client, one after another. An upload holds the shared weights of the
            last pass only, so all other passes must train local weights.
        keep_optimizer: Whether the optimizer's state stays with the client between rounds, instead
            of a new state in each round. For methods of one pass; a study can set it
            (`Training.keep_optimizer`).
        personal_params: Function from the first variables to parameters that are trained with the
            network's in every pass and never leave the client. Terms get them as
            ``forward.personal_params``, views in the client's tree under `PERSONAL_PARAMS`.
        shared_params: The same for parameters that are sent and averaged with the network's. Terms
            get them as ``forward.shared_params``, views in the server's tree under `SHARED_PARAMS`.

    Raises:
        FedloomError: If the study keeps optimizers and clients train in several passes.
    """
    keep = context.training.keep_optimizer
    if keep and len(passes) > 1:
        raise FedloomError(
            "keep_optimizer: is true, but clients of this method train in several passes",
            "false",
            "choose a method whose clients train in one pass",
        )
    alterations = Alterations(context.alterations)
    # A view, so that building a method leaves the study's network as it is.
    network = context.network.view()
    network.alter(alterations.layers)
    for term in (*terms, *context.terms):
        if isinstance(term, TappedTerm | ReferenceTerm | AdaptiveTerm):
            network.tap(term.taps)
    builder = _RecipeBuilder(
        network,
        optimizer(context.training),
        alterations,
        tuple(term for term in (*terms, *context.terms) if not isinstance(term, AdaptiveTerm)),
        tuple(term for term in (*terms, *context.terms) if isinstance(term, AdaptiveTerm)),
        local,
        passes,
        keep_optimizer if keep is None else keep,
        personal_params,
        shared_params,
        context.task,
    )
    names = [name for kind in VARIABLE_GROUPS for name in context.network.names[kind]]
    return Method(
        builder.init,
        tuple(map(builder.build_pass, passes)),
        WeightedAverage(_average),
        _views(names, local),
    )


@dataclass(frozen=True, eq=False)
class _RecipeBuilder:
    """Arguments of a recipe, and the functions of its `Method`."""

    network: Network
    optimizer: Optimizer
    alterations: Alterations
    stateless_terms: tuple[Term, ...]
    adaptive_terms: tuple[AdaptiveTerm, ...]
    local: Predicate
    passes: tuple[TrainingPass, ...]
    keep_optimizer: bool
    personal_params: Start | None
    shared_params: Start | None
    task: Task

    @property
    def references(self) -> list[Reference]:
        references = [
            term.reference for term in self.stateless_terms if isinstance(term, ReferenceTerm)
        ]
        return references + [term.reference for term in self.adaptive_terms if term.reference]

    def init(self, variables: Tree) -> tuple[Tree, Tree]:
        personal_params = (
            {PERSONAL_PARAMS: self.personal_params(variables)} if self.personal_params else {}
        )
        client = {**select(variables, self.local), **personal_params}
        shared_params = {SHARED_PARAMS: self.shared_params(variables)} if self.shared_params else {}
        server = {**select(variables, lambda name: not self.local(name)), **shared_params}
        if self.keep_optimizer:
            # In the order in which `begin` puts the weights together.
            merged = merge(server, client)
            trained = {**_trained(merged, self.passes[0])[0], **personal_params, **shared_params}
            client["optimizer"] = self.optimizer.init(trained)
        if self.adaptive_terms:
            client["terms"] = {term.name: term.start(variables) for term in self.adaptive_terms}
        client |= self.alterations.start(variables)
        return server, client

    def build_pass(self, training_pass: TrainingPass) -> Pass:
        def begin(server: Tree, client: Tree) -> Tree:
            return self.begin(training_pass, server, client)

        refreshes = tuple(
            _refresh(term, term.refresh) for term in self.adaptive_terms if term.refresh
        )
        reference = self.reference if self.references else None
        return Pass(
            begin,
            self.loss,
            self.update,
            self.end,
            Sampling(epochs=training_pass.epochs, needs_keys=self.alterations.needs_keys),
            refreshes,
            reference,
        )

    def begin(self, training_pass: TrainingPass, server: Tree, client: Tree) -> Tree:
        variables = merge(server, client)
        trained, frozen = _trained(variables, training_pass)
        if self.personal_params:
            trained = {**trained, PERSONAL_PARAMS: client[PERSONAL_PARAMS]}
        if self.shared_params:
            trained = {**trained, SHARED_PARAMS: server[SHARED_PARAMS]}
        state = client["optimizer"] if self.keep_optimizer else self.optimizer.init(trained)
        work = {"params": trained, "frozen": frozen, "optimizer": state}
        states = {key: client[key] for key in ("terms", ALTERATION_STATES) if key in client}
        return {**work, **states, "buffers": variables["buffers"]}

    def reference(self, server: Tree, work: Tree, batch: Batch) -> Tree:
        @cache
        def reference_pass(model: str) -> Output:
            variables = server if model == SHARED else work[model]
            if len(variables.get("params", {})) < len(self.network.names["params"]):
                raise FedloomError(
                    "terms: this method's server does not have all weights, so that the distance "
                    "of a client's model from the server's model cannot be measured",
                    advice="choose a method that shares all weights",
                )
            return self.network.eval(variables["params"], variables["buffers"], batch["x"])

        return {
            name: leaf
            for reference in self.references
            for name, leaf in reference(reference_pass).items()
        }

    def loss(self, server: Tree, work: Tree, batch: Batch) -> tuple[Tensor, Tree]:
        params, personal_params, shared_params = self._split_params(work)
        batch = self.alterations.change_batch(batch)
        alter, altered = self.alterations.functions(work.get(ALTERATION_STATES, {}), batch)
        output = self.network.train(
            params, work["buffers"], batch["x"], key=batch.get("key"), alter=alter
        )
        forward = Forward(
            self.network,
            output,
            params,
            server,
            work,
            batch,
            personal_params,
            shared_params,
            task=self.task,
        )
        values, statistics = [_scalar(term(forward)) for term in self.stateless_terms], {}
        for term in self.adaptive_terms:
            value, statistics[term.name] = term.term(forward, work["terms"][term.name])
            values.append(_scalar(value))
        aux = {"buffers": output.buffers, "terms": statistics, "alterations": altered}
        return reduce(add, values), aux

    @consumes_gradients
    def update(self, server: Tree, work: Tree, grads: Tree, aux: Tree, lr: Rate) -> Tree:
        params, state = self.optimizer.step(work["params"], grads, work["optimizer"], lr)
        for term in self.adaptive_terms:
            if term.refresh is None:
                work = _adapted(work, term, aux["terms"][term.name])
        work = self.alterations.adapt(work, aux.get("alterations", {}))
        return {**work, "params": params, "buffers": aux["buffers"], "optimizer": state}

    def end(self, server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        params, personal_params, shared_params = self._split_params(work)
        ordered = {name: params[name] for name in self.network.names["params"]}
        final = {"params": ordered, "buffers": work["buffers"]}
        client_state = {**select(final, self.local)}
        if self.personal_params:
            client_state[PERSONAL_PARAMS] = personal_params
        if self.keep_optimizer:
            client_state["optimizer"] = work["optimizer"]
        client_state |= {key: work[key] for key in ("terms", ALTERATION_STATES) if key in work}
        added = {SHARED_PARAMS: shared_params} if self.shared_params else {}
        upload = {**select(final, lambda name: not self.local(name)), **added}
        return {**client, **client_state}, upload

    def _split_params(self, work: Tree) -> tuple[Tree, Tree, Tree]:
        """Return the network's parameters, the personal parameters, and the shared ones."""
        params = {**work["frozen"], **work["params"]}
        return params, params.pop(PERSONAL_PARAMS, {}), params.pop(SHARED_PARAMS, {})


def _scalar(value: Tensor) -> Tensor:
    """Return the value of a loss term, which must be a scalar tensor."""
    if not isinstance(value, Tensor) or value.dim():
        found = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        advice = "return weighted_mean(values, forward.batch) of a value for each sample, and "
        advice += "keep tensors, as a number has no gradient"
        if value is None:
            advice = "end the term by `return` and its value"
        raise FedloomError(
            f"a loss term returned a value of {found}, which is no scalar tensor", advice=advice
        )
    return value


def _average(server: Tree, clients: Tree, uploads: Tree, n: Tensor) -> tuple[Tree, Tree]:
    return {**server, **trees.mean(uploads, n)}, dict(clients)


def _adapted(work: Tree, term: AdaptiveTerm, statistics: Tree) -> Tree:
    state = term.adapt(work["terms"][term.name], statistics)
    return {**work, "terms": {**work["terms"], term.name: state}}


def _refresh(term: AdaptiveTerm, periodic: Periodic) -> Refresh:
    def look(server: Tree, work: Tree, batch: Batch) -> Tree:
        params = {**work["frozen"], **work["params"]}
        for added in (PERSONAL_PARAMS, SHARED_PARAMS):
            params.pop(added, None)
        variables = {"params": params, "buffers": work["buffers"]}
        return periodic.look(variables, batch)

    def adapt(work: Tree, statistics: Tree) -> Tree:
        return _adapted(work, term, statistics)

    return Refresh(periodic.interval, periodic.first_step, periodic.batch_count, look, adapt)


def _trained(variables: Tree, training_pass: TrainingPass) -> tuple[Tree, Tree]:
    params = variables["params"]
    trained = {name: tensor for name, tensor in params.items() if training_pass.trained(name)}
    return trained, {name: tensor for name, tensor in params.items() if name not in trained}


def _views(names: list[str], local: Predicate) -> Mapping[str, View]:
    """Return the views: personal if any weight is local, else global."""
    if any(local(name) for name in names):
        return {PERSONAL: personal}
    return {GLOBAL: shared}


def shared(server: Tree, client: Tree | None) -> Tree:
    """Return the server's variables, as a view."""
    return select(server, all_weights)


def personal(server: Tree, client: Tree | None) -> Tree:
    """Return a client's own variables and the server's for all others, as a view."""
    return merge(server, client or {})


def select(variables: Tree, chosen: Predicate) -> Tree:
    """Return the chosen variables."""
    return {
        kind: {n: t for n, t in variables[kind].items() if chosen(n)} for kind in VARIABLE_GROUPS
    }


def merge(server: Tree, client: Tree) -> Tree:
    """Return the server's variables with the client's own instead of those of equal names."""
    return {kind: {**server[kind], **client[kind]} for kind in VARIABLE_GROUPS}
