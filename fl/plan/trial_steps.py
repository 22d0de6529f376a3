"""A step of each pass of a method on made-up samples.

The step is taken by a stack of two clients or, where that cannot be, by one. Of a large model the
step is taken on PyTorch's meta device, which knows shapes and computes no numbers; what asks for a
number is taken again on the CPU.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fl.api import trees
from fl.api.alteration import Alteration
from fl.api.method import (
    VARIABLE_GROUPS,
    BuildContext,
    Method,
    MethodTerm,
    Pass,
    Phase,
    Sampling,
    Sweep,
)
from fl.api.term import AdaptiveTerm, ReferenceTerm, Term
from fl.api.trees import Tree
from fl.base import plugins
from fl.base.declaration import declaration_of
from fl.base.errors import FedloomError
from fl.base.specs import MethodSpec, component_specs
from fl.data.dataset import Modality
from fl.engine import dry_round, engine
from fl.engine.batches import Schedule, schedule, sweep_schedule
from fl.engine.run_setup import MethodComponents, build, build_component
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.engine.state import PhaseSchedule, RoundSchedule, State, check_server
from fl.plan.components import Inputs
from fl.pytorch import torch_internals

if TYPE_CHECKING:
    from fl.engine.upload_rows import UploadLayout

SUFFICIENT_BATCH = 4
"""Samples in a batch above which more make no difference to whether a step can be taken.

A method that halves its batches gives batch normalisation two values to work on.
"""

FIRST_ROUND = 1

META = torch.device("meta")
CPU = torch.device("cpu")

SMALL = 100_000
"""Largest number of weights for which a step is quicker on the CPU.

The meta device takes a second to load, and as long for a small operation as for a large one.
"""


class TooFew(FedloomError):
    """The error for a batch of too few samples; ``sufficient_size`` are enough."""

    def __init__(self, problem: str, sufficient_size: int) -> None:
        self.sufficient_size = sufficient_size
        super().__init__(problem)


@dataclass(frozen=True)
class Attempt:
    """A method that is tried with one model, and the inputs of the model."""

    method_components: MethodComponents
    context: BuildContext
    inputs: Inputs
    variables: Tree
    _methods: dict[torch.device, Method] = field(default_factory=dict, init=False)

    @cached_property
    def _devices(self) -> list[torch.device]:
        """The devices to try in turn until one succeeds."""
        is_small_batch = self.context.training.batch_size < SUFFICIENT_BATCH
        is_small_model = (
            sum(tensor.numel() for tensor in self.variables["params"].values()) <= SMALL
        )
        # Whether a loss is finite shows on the CPU alone, and depends on the size of small batches.
        if is_small_batch or is_small_model:
            return [CPU]
        _prepare_meta()
        return [META, CPU]

    def _method(self, device: torch.device) -> Method:
        """Return the method, built once for each device.

        It has a view of the network, so that no attempt changes a later one.
        """
        if device not in self._methods:
            context = replace(self.context, network=self.context.network.view())
            with torch.device(device):
                self._methods[device] = build(self.method_components, context)
        return self._methods[device]

    def build(self) -> Method:
        """Build the method, which may compute with the model, on the first device that can."""
        for device in self._devices[:-1]:
            with contextlib.suppress(Exception):
                return self._method(device)
        return self._method(CPU)

    def check_asynchronous(self) -> None:
        """Refuse a method whose clients send something else than weights."""
        self._weights_layout()

    def _weights_layout(self) -> UploadLayout:
        from fl.engine.asynchronous import weights_layout  # Few studies need it.

        title = declaration_of(self.method_components.method).title
        with torch.device(CPU):
            return weights_layout(self._method(CPU), self.context, title)

    def check_selection(self) -> None:
        """Refuse a selection that asks about a shared model that there is not."""
        from fl.engine.participation import check_questions  # Few studies need it.

        title = declaration_of(self.method_components.method).title
        for selection in self.method_components.selection:
            check_questions(selection.build(self.context), self._method(CPU), title)

    def reason(self) -> str:
        """Return why clients cannot be trained in one stack; empty if they can.

        Raises what goes wrong with one client (`Rehearsal.try_point`).
        """
        size = self.context.training.batch_size
        stack_error = self._error(min(size, SUFFICIENT_BATCH), stacked=True)
        if stack_error is None:
            return ""
        error = self._error(min(size, SUFFICIENT_BATCH))
        if error is None:
            return plugins.describe(stack_error)
        for larger in range(size + 1, SUFFICIENT_BATCH + 1):
            if self._error(larger) is None:
                raise TooFew(plugins.describe(error), larger)
        if not isinstance(error, FedloomError):
            self._check_init(error)
        raise error

    def _check_init(self, error: Exception) -> None:
        """Raise an error that names `init` of a plugin if it made other weights than the model has.

        Some methods do so on purpose, so that the error of the step is part of the message.
        """
        if type(self.method_components.method).__module__.startswith(f"{plugins.FL.name}."):
            return
        server: Tree = {}
        with contextlib.suppress(Exception):
            server, _ = self._method(CPU).init(self.variables)
        groups = {key: self.variables[key] for key in server if key in VARIABLE_GROUPS}
        try:
            check_server(groups, server, "init")
        except FedloomError as difference:
            problem = f"{plugins.describe(error)}; {difference.problem} in the model"
            raise FedloomError(problem, advice=difference.advice) from None

    def has_training_passes(self) -> bool:
        """Whether clients make a pass that is as long as local_epochs or local_steps say."""
        return any(
            isinstance(pass_, Pass) and pass_.sampling.epochs is None and not pass_.sampling.steps
            for phase in self.build().phases
            for pass_ in phase.passes
        )

    @torch.no_grad()
    def traces(self) -> frozenset[str] | None:
        """Return the names of what is recorded of a round; None if only training can tell."""
        for device in self._devices:
            with contextlib.suppress(Exception), torch.device(device):
                method = self._method(device)
                server, client = method.init(trees.to(self.variables, device))
                traces = method.trace(server) if method.trace else {}
                if method.trace_clients:
                    traces = {**traces, **method.trace_clients(trees.repeat(client, 2))}
                return frozenset(traces)
        return None

    @torch.no_grad()
    def state_bytes(self) -> tuple[int, int]:
        """Return bytes of the server's and of a client's state; zeros if only training can tell."""
        for device in self._devices:
            with contextlib.suppress(Exception), torch.device(device):
                server, client = self._method(device).init(trees.to(self.variables, device))
                return trees.nbytes(server), trees.nbytes(client)
        return 0, 0

    def participation_bytes(self, clients: int) -> tuple[int, int]:
        """Return the bytes that selections and asynchronous servers keep, and those they need.

        Args:
            clients: Number of clients.

        Returns:
            Bytes of what is kept between rounds; bytes of memory in a round, about. Zeros if only
            training can tell.
        """
        kept = needed = 0
        with contextlib.suppress(Exception), torch.device(META):
            for component in self.method_components.selection:
                selection = component.build(self.context)
                kept += trees.nbytes(selection.init(clients))
                needed += selection.needed_bytes(clients, trees.nbytes(self.variables["params"]))
            for component in self.method_components.asynchronous:
                server, row = component.build(self.context), self._weights_layout().zeros.to(META)
                kept += trees.nbytes(server.init(clients, row))
                kept += (server.concurrency + 1) * row.nbytes  # The versions that are under way.
                needed += 5 * server.size * row.nbytes  # Uploads, and what is made of them.
        return kept, 2 * kept + needed

    def _error(self, size: int, stacked: bool = False) -> Exception | None:
        """Return the error with batches of a size, for one client or for a stack of two."""
        last_error = None
        for device in self._devices:
            try:
                _Trial(self, self._method(device), size, device, stacked).take_steps()
                return None
            except Exception as error:
                last_error = error
        return last_error


@dataclass(frozen=True)
class _Trial:
    """A step of each pass of a method, with batches of a size, for one client or a stack of two."""

    attempt: Attempt
    method: Method
    size: int
    device: torch.device
    stacked: bool

    def take_steps(self) -> None:
        """Let the engine take a step of each pass, whether or not it is in the first round.

        Raises:
            FedloomError: If the loss of a small batch is not finite. Whether that of a larger one
                is depends on values, and shows in training.
        """
        is_small_batch = self.attempt.context.training.batch_size < SUFFICIENT_BATCH
        shows_values = is_small_batch and self.device == CPU
        backend = "stacked" if self.stacked else "loop"
        # Phases leave it as it is; a method may draw images for it.
        state = self._state()
        for phase in map(_with_checked_returns, dry_round.with_single_steps(self.method).phases):
            phase_schedule = self._phase_schedule(phase)
            schedule = RoundSchedule(
                FIRST_ROUND, (phase_schedule,), self._arrays, self.attempt.context.training
            )
            results = dry_round.run_first_steps(
                phase, state, phase_schedule, schedule, backend, swept_samples=self.size
            )
            for client_states in results.client_states:
                # The trial draws few samples of a class, of which shapes may be made.
                state.client_states.check(client_states, shapes=False)
            if shows_values and not all(losses.isfinite().all() for losses in results.losses):
                raise FedloomError("the loss is not finite")

    @property
    def _clients(self) -> int:
        return 2 if self.stacked else 1

    def _state(self) -> State:
        """Return the state before round 1, of clients with a sample of each class."""
        variables = trees.to(self.attempt.variables, self.device)
        counts = torch.ones(self._clients, self.attempt.context.classes, dtype=torch.int64)
        return engine.initial_state(self.method, variables, counts)

    def _phase_schedule(self, phase: Phase) -> PhaseSchedule:
        """Return the clients, with a batch for every pass of a phase."""
        sizes = torch.full((self._clients,), self.size, dtype=torch.float64, device=self.device)
        schedules = tuple(map(self._schedule, phase.passes))
        return PhaseSchedule(torch.arange(self._clients), sizes, schedules)

    def _schedule(self, pass_: Pass | Sweep) -> Schedule:
        """Draw a batch for each client, as the scheduler of a run does."""
        context, training = self.attempt.context, self.attempt.context.training
        if isinstance(pass_, Sweep):
            return sweep_schedule([np.arange(self.size)] * self._clients)
        by_class = pass_.sampling.per_class is not None
        numbers = np.arange(self._arrays.size if by_class else self.size)
        is_weighted = training.class_weights != "none"
        return schedule(
            [numbers] * self._clients,
            range(self._clients),
            replace(training, batch_size=self.size, local_epochs=None, local_steps=1),
            context.seed,
            FIRST_ROUND,
            sampling=_with_one_step(pass_.sampling),
            labels=[self._labels[: len(numbers)]] * self._clients if by_class else (),
            classes=context.classes,
            keyed=context.network.random or self._arrays.random,
            refreshes=pass_.refreshes,
            class_weights=np.ones((self._clients, context.classes)) if is_weighted else None,
        )

    @property
    def _count(self) -> int:
        """The number of samples: a batch, and enough of each class if a pass asks for classes."""
        passes = [pass_ for phase in self.method.phases for pass_ in phase.passes]
        samplings = [pass_.sampling for pass_ in passes if isinstance(pass_, Pass)]
        per_class = max((_with_one_step(s).per_class or 0 for s in samplings), default=0)
        return max(self.size, self.attempt.context.classes * per_class)

    @cached_property
    def _labels(self) -> np.ndarray:
        """Labels that repeat all classes."""
        inputs = self.attempt.inputs
        shape = inputs.all_modalities[0].shape
        return np.asarray(self.attempt.context.task.invent(self._count, inputs.classes, shape))

    @cached_property
    def _arrays(self) -> Arrays:
        """Random inputs of the data set's shape; tokens where it has them."""
        inputs, context = self.attempt.inputs, self.attempt.context
        random = np.random.default_rng(0)
        augmentation = context.training.augmentation
        modalities = inputs.all_modalities
        augmentations = (
            augmentation_by_modality(modalities, augmentation) if inputs.modalities else {}
        )

        def arrays(modality: Modality) -> Arrays:
            shape = (self._count, *modality.shape)
            if modality.tokens:
                x = random.integers(modality.tokens, size=shape)
            else:
                x = random.standard_normal(shape).astype(np.float32)
            own_augmentation = augmentations.get(modality, augmentation)
            return Arrays(x, self._labels, None, self.device, augmentation=own_augmentation)

        samples = inputs.tree(arrays)
        return SeveralArrays(samples) if inputs.modalities else samples


def _with_checked_returns(phase: Phase) -> Phase:
    """Return the phase with passes that say which of their functions forgot to return a value."""
    passes = (_check_returns(pass_) if isinstance(pass_, Pass) else pass_ for pass_ in phase.passes)
    return replace(phase, passes=tuple(passes))


def _check_returns(pass_: Pass) -> Pass:
    """Return the pass; its `begin` and `end` raise `FedloomError` if they return no tree."""

    def begin(server: Tree, client: Tree) -> Tree:
        work: Tree | None = pass_.begin(server, client)
        if work is None:
            problem = "`begin` of the method's pass returns None"
            raise FedloomError(problem, advice="write `return` before the state of the pass")
        return work

    def end(server: Tree, client: Tree, work: Tree) -> tuple[Tree, Tree]:
        result = pass_.end(server, client, work)
        if not isinstance(result, tuple) or len(result) != 2:
            given = "None" if result is None else f"an object of type {type(result).__name__}"
            problem = f"`end` of the method's pass returns {given}, no client with its upload"
            raise FedloomError(problem, advice="write `return client, upload`")
        return result

    return replace(pass_, begin=begin, end=end)


def _with_one_step(sampling: Sampling) -> Sampling:
    """Return the sampling of a pass of one step in every round, with few samples of a class."""
    per_class = None if sampling.per_class is None else min(sampling.per_class, SUFFICIENT_BATCH)
    return replace(sampling, steps=lambda round_: 1, epochs=None, per_class=per_class)


_prepare_meta = cache(torch_internals.remember_meta_shapes)


class UseRecorder:
    """Records whether a method uses what a study adds to it: its terms and alterations.

    Methods made by `fl.api.recipe` do. A loss written by hand may use none of them, and would train
    as if nothing had been added; that shows only when the loss is computed.

    Attributes:
        method_components: The method to build instead of the original one; it computes the same.
    """

    def __init__(self, method_components: MethodComponents) -> None:
        self._recorded = {
            key: tuple(map(_Recorded, getattr(method_components, key)))
            for key in ("terms", "alterations")
        }
        self.method_components = replace(method_components, **self._recorded)

    def check(self, spec: MethodSpec) -> None:
        """Raise `FedloomError` for a term or alteration that no loss has used.

        Args:
            spec: What the method is composed of: its ``method``, ``terms`` and ``alterations``.
        """
        name = spec["method"]["name"]
        for key, recorded in self._recorded.items():
            for added, record in zip(component_specs(spec, key), recorded, strict=True):
                if not record.is_used:
                    problem = f"{name}: {key} are set, but its loss does not use {added['name']}"
                    advice = f"no {key}, as the loss of {name} takes none"
                    raise FedloomError(problem, advice=advice)


@dataclass
class _Recorded:
    """A term or an alteration of the registry, which records a call of what it builds."""

    registered: Any
    is_used: bool = False

    def build(self, context: BuildContext) -> Term | AdaptiveTerm | Alteration | MethodTerm:
        component = build_component(self.registered, context)
        if isinstance(component, AdaptiveTerm):
            return replace(component, term=self._recording(component.term))
        if isinstance(component, ReferenceTerm | MethodTerm):
            return replace(component, term=self._recording(component.term))
        if isinstance(component, Alteration):
            change_batch = component.change_batch and self._recording(component.change_batch)
            return replace(
                component, apply=self._recording(component.apply), change_batch=change_batch
            )
        return self._recording(component)

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that computes the same and records its call."""

        def recording(*arguments: Any) -> Any:
            self.is_used = True
            return function(*arguments)

        return recording
