"""Methods built from loss terms, passes, and a choice of weights that clients share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from operator import add
from typing import Any, NotRequired, Protocol, TypedDict

import torch
from torch import Tensor

from fl.api import trees
from fl.api.alteration import Alterations
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
from fl.api.protocols import Start, consumes_gradients, with_stack_gradients
from fl.api.state import ClientFacts, Variables, Weights
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
    WeightTerm,
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


class RecipeServer(Variables):
    """State of the server: the weights that clients share.

    Attributes:
        shared_params: Parameters in addition to the network's, if the method has some: a tree.
    """

    shared_params: NotRequired[Any]


class AddedStates(TypedDict, total=False):
    """States of what a study or a method adds to training, if it has a state.

    Attributes:
        terms: State of each `fl.api.term.AdaptiveTerm`, by its name.
        alterations: State of each `fl.api.alteration.Alteration`, by its name.
    """

    terms: Mapping[str, Tree]
    alterations: Mapping[str, Tree]


class RecipeClient(ClientFacts, Variables, AddedStates):
    """State of a client: the weights that stay with it.

    Attributes:
        personal_params: Parameters in addition to the network's, if the method has some: a tree.
        optimizer: State of the optimizer, such as momentum by weight, if it is kept between rounds.
    """

    personal_params: NotRequired[Any]
    optimizer: NotRequired[Tree]


class RecipeWork(AddedStates):
    """State of a client's pass, from its begin to its end.

    Attributes:
        params: Parameters that the pass trains, by name; additional ones are trees of their own,
            under ``personal_params`` and ``shared_params``.
        frozen: Parameters that it does not train, by name.
        optimizer: State of the optimizer.
        buffers: Buffers by name, as the last step left them.
    """

    params: Tree
    frozen: Weights
    optimizer: Tree
    buffers: Weights


class RecipeUpload(Variables):
    """Upload of a client: the weights that clients share, as its training left them.

    Attributes:
        shared_params: Parameters in addition to the network's, if the method has some: a tree.
    """

    shared_params: NotRequired[Any]


Recipe = Method[RecipeServer, RecipeClient, RecipeWork, RecipeUpload]
"""Method that `recipe` builds; a method that adds entries to its states has classes of its own."""


class StepResults(TypedDict):
    """Second result of a step's loss, for the update.

    Attributes:
        buffers: Buffers after the forward pass, by name.
        terms: Statistics of the batch for each adaptive term, by its name.
        alterations: Observations of each alteration, by its name and layer.
    """

    buffers: Weights
    terms: Mapping[str, Tree]
    alterations: NotRequired[Mapping[str, Tree]]


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
) -> Recipe:
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

    def init(self, variables: Variables) -> tuple[RecipeServer, RecipeClient]:
        shared, local = self._divided(variables)
        server: RecipeServer = {"params": shared["params"], "buffers": shared["buffers"]}
        client: RecipeClient = {"params": local["params"], "buffers": local["buffers"]}
        if self.personal_params:
            client["personal_params"] = self.personal_params(variables)
        if self.shared_params:
            server["shared_params"] = self.shared_params(variables)
        if self.keep_optimizer:
            trained, _ = self.trained_and_frozen(self.passes[0], server, client)
            client["optimizer"] = self.optimizer.init(trained)
        if self.adaptive_terms:
            client["terms"] = {term.name: term.start(variables) for term in self.adaptive_terms}
        alteration_states = self.alterations.start(variables)
        if alteration_states:
            client["alterations"] = alteration_states
        return server, client

    def _divided(self, variables: Variables) -> tuple[Variables, Variables]:
        """Return the variables that clients share, and those that stay with a client."""
        shared = select(variables, lambda name: not self.local(name))
        return shared, select(variables, self.local)

    def build_pass(self, training_pass: TrainingPass) -> Pass[RecipeWork, RecipeUpload]:
        def begin(server: RecipeServer, client: RecipeClient) -> RecipeWork:
            return self.begin(training_pass, server, client)

        refreshes = tuple(
            _refresh(term, term.refresh) for term in self.adaptive_terms if term.refresh
        )
        reference = self.reference if self.references else None
        return Pass(
            begin,
            with_stack_gradients(self.loss, self.stack_gradients) if self.is_by_hand else self.loss,
            self.update,
            self.end,
            Sampling(epochs=training_pass.epochs, needs_keys=self.alterations.needs_keys),
            refreshes,
            reference,
        )

    @property
    def is_by_hand(self) -> bool:
        """Whether the loss is that of the task, and at most of terms with known gradients."""
        remaining = [term for term in self.stateless_terms if not isinstance(term, WeightTerm)]
        added = (self.adaptive_terms, self.personal_params, self.shared_params, *self.alterations)
        return remaining == [task_loss] and not any(added)

    @cached_property
    def weight_terms(self) -> list[WeightTerm]:
        """The terms of weights alone, whose gradients are known."""
        return [term for term in self.stateless_terms if isinstance(term, WeightTerm)]

    def trained_and_frozen(
        self, training_pass: TrainingPass, server: RecipeServer, client: RecipeClient
    ) -> tuple[Tree, Weights]:
        """Return the parameters that a pass trains, additional ones too, and all others."""
        params = merge(server, client)["params"]
        trained = {name: tensor for name, tensor in params.items() if training_pass.trained(name)}
        frozen = {name: tensor for name, tensor in params.items() if name not in trained}
        added: dict[str, Tree] = {}
        if self.personal_params:
            added["personal_params"] = client["personal_params"]
        if self.shared_params:
            added["shared_params"] = server["shared_params"]
        return {**trained, **added}, frozen

    def begin(
        self, training_pass: TrainingPass, server: RecipeServer, client: RecipeClient
    ) -> RecipeWork:
        trained, frozen = self.trained_and_frozen(training_pass, server, client)
        state = client["optimizer"] if self.keep_optimizer else self.optimizer.init(trained)
        return {
            "params": trained,
            "frozen": frozen,
            "optimizer": state,
            **_added_states(client),
            "buffers": merge(server, client)["buffers"],
        }

    def reference(self, server: Any, work: Any, batch: Batch) -> Tree:
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

    def loss(
        self, server: RecipeServer, work: RecipeWork, batch: Batch
    ) -> tuple[Tensor, StepResults]:
        params, personal_params, shared_params = _split_params(work)
        batch = self.alterations.change_batch(batch)
        alter, altered = self.alterations.functions(work.get("alterations", {}), batch)
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
        values = [_scalar(term(forward)) for term in self.stateless_terms]
        statistics: dict[str, Tree] = {}
        for term in self.adaptive_terms:
            value, statistics[term.name] = term.term(forward, work["terms"][term.name])
            values.append(_scalar(value))
        return reduce(add, values), {
            "buffers": output.buffers,
            "terms": statistics,
            "alterations": altered,
        }

    @torch.no_grad()
    def stack_gradients(
        self, server: RecipeServer, work: RecipeWork, batch: Batch
    ) -> tuple[Tensor, Tree, StepResults] | None:
        """Compute `loss` of a stack of clients and its gradients, see `Network.stack_gradients`."""

        def loss(outputs: Tensor) -> tuple[Tensor, Tensor]:
            by_hand = self.task.loss_gradient and self.task.loss_gradient(outputs, batch)
            return by_hand or self._loss_gradient(outputs, batch)

        result = self.network.stack_gradients(work["params"], work["frozen"], batch["x"], loss)
        if result is None:
            return None
        losses, grads = result
        params = {**work["frozen"], **work["params"]}
        for term in self.weight_terms:
            losses = losses + term.add_gradient(server, work, params, grads)
        return losses, grads, {"buffers": work["buffers"], "terms": {}}

    @torch.enable_grad()
    def _loss_gradient(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of the task of each client and its gradient by the outputs."""

        def loss_of(batch: Batch) -> tuple[Tensor]:
            return (self.task.loss(batch["outputs"], batch),)

        leaf = outputs.detach().requires_grad_()
        (losses,) = trees.vmap(loss_of, (0,))({**batch, "outputs": leaf})
        return losses.detach(), torch.autograd.grad(losses.sum(), leaf)[0]

    @consumes_gradients
    def update(
        self, server: RecipeServer, work: RecipeWork, grads: Tree, aux: StepResults, lr: Rate
    ) -> RecipeWork:
        if self.adaptive_terms and isinstance(grads, trees.Scratch):
            states = {"terms": work["terms"], "statistics": aux["terms"]}
            if trees.share_memory(work["params"], states):
                grads = trees.Scratch(grads)  # A state that refers to the weights keeps them.
        params, state = self.optimizer.step(work["params"], grads, work["optimizer"], lr)
        for term in self.adaptive_terms:
            if term.refresh is None:
                work = _adapted(work, term, aux["terms"][term.name])
        work = self.alterations.adapt(work, aux.get("alterations", {}))
        return {**work, "params": params, "buffers": aux["buffers"], "optimizer": state}

    def end(
        self, server: RecipeServer, client: RecipeClient, work: RecipeWork
    ) -> tuple[RecipeClient, RecipeUpload]:
        params, personal_params, shared_params = _split_params(work)
        ordered = {name: params[name] for name in self.network.names["params"]}
        final: Variables = {"params": ordered, "buffers": work["buffers"]}
        shared, local = self._divided(final)
        upload: RecipeUpload = {"params": shared["params"], "buffers": shared["buffers"]}
        if self.shared_params:
            upload["shared_params"] = shared_params
        client = {**client, **local}
        if self.personal_params:
            client["personal_params"] = personal_params
        if self.keep_optimizer:
            client["optimizer"] = work["optimizer"]
        return {**client, **_added_states(work)}, upload


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


def _split_params(work: RecipeWork) -> tuple[Weights, Tree, Tree]:
    """Return the network's parameters, the personal parameters, and the shared ones."""
    params = {**work["frozen"], **work["params"]}
    return params, params.pop(PERSONAL_PARAMS, {}), params.pop(SHARED_PARAMS, {})


def _added_states(state: RecipeClient | RecipeWork) -> AddedStates:
    """Return the states of terms and of alterations, if there are some."""
    added: AddedStates = {}
    if "terms" in state:
        added["terms"] = state["terms"]
    if "alterations" in state:
        added["alterations"] = state["alterations"]
    return added


def _average(
    server: RecipeServer, clients: RecipeClient, uploads: RecipeUpload, n: Tensor
) -> tuple[RecipeServer, RecipeClient]:
    return {**server, **trees.mean(uploads, n)}, clients


def _adapted(work: RecipeWork, term: AdaptiveTerm, statistics: Tree) -> RecipeWork:
    state = term.adapt(work["terms"][term.name], statistics)
    return {**work, "terms": {**work["terms"], term.name: state}}


def _refresh(term: AdaptiveTerm, periodic: Periodic) -> Refresh:
    def look(server: RecipeServer, work: RecipeWork, batch: Batch) -> Tree:
        variables: Variables = {"params": _split_params(work)[0], "buffers": work["buffers"]}
        return periodic.look(variables, batch)

    def adapt(work: RecipeWork, statistics: Tree) -> RecipeWork:
        return _adapted(work, term, statistics)

    return Refresh(periodic.interval, periodic.first_step, periodic.batch_count, look, adapt)


def _views(names: list[str], local: Predicate) -> Mapping[str, View]:
    """Return the views: personal if any weight is local, else global."""
    if any(local(name) for name in names):
        return {PERSONAL: personal_model}
    return {GLOBAL: shared_model}


def shared_model(server: Variables, client: object) -> Variables:
    """Return the server's variables, as a view."""
    return select(server, all_weights)


def personal_model(server: Variables, client: Variables) -> Variables:
    """Return a client's own variables and the server's for all others, as a view."""
    return merge(server, client)


def select(variables: Variables, chosen: Predicate) -> Variables:
    """Return the chosen variables."""
    params, buffers = variables["params"], variables["buffers"]
    return {
        "params": {name: tensor for name, tensor in params.items() if chosen(name)},
        "buffers": {name: tensor for name, tensor in buffers.items() if chosen(name)},
    }


def merge(server: Variables, client: Variables) -> Variables:
    """Return the server's variables with the client's own instead of those of equal names."""
    return {
        "params": {**server["params"], **client["params"]},
        "buffers": {**server["buffers"], **client["buffers"]},
    }
