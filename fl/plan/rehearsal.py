"""Every model and method of a study, tried before anything is trained.

Whether a model, a method, what is added to it and a batch size fit each other shows only when they
are combined. Here they are combined for one step, of a stack of two clients or, where that cannot
be, of one. Of a large model the step is taken on PyTorch's meta device, which knows shapes and
computes no numbers; what asks for a number is taken again on the CPU.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import BuildContext, Method, Pass, Phase, Sweep, declaration_of
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base import error_text
from fl.base.errors import FedloomError
from fl.base.specs import MethodSpec
from fl.data.inputs import Modality
from fl.engine import dry_round, engine, modality_rounds
from fl.engine.assembly import MethodComponents, build
from fl.engine.batches import Schedule
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.engine.state import Roster, RoundSchedule, State
from fl.plan.components import Inputs
from fl.plan.config import Values
from fl.plan.grids import Point
from fl.plan.model_probe import probed_network
from fl.plan.run_spec import method_components_of
from fl.plan.scenario import Scenario
from fl.plan.use_recorder import UseRecorder
from fl.pytorch import torch_internals
from fl.pytorch.adaptation import adapt

SUFFICIENT_BATCH = 4
"""Samples in a batch above which more make no difference to whether a step can be taken.

A method that halves its batches gives batch normalisation two values to work on.
"""

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
class Rehearsed:
    """The result of trying a point.

    Attributes:
        unstackable: Why clients cannot be trained in one stack; empty if they can.
        traces: Names of what is recorded of a round; None if only training can tell.
    """

    unstackable: str
    traces: frozenset[str] | None


class Rehearsal:
    """A model with the inputs of a data set; one of each modality, where clients differ in it.

    Attributes:
        parameters: Number of trained weights; what modalities share counts once.
        head: Names of the layers that make the outputs, in words; empty if there are none.
    """

    def __init__(self, scenario: Scenario) -> None:
        model = scenario.model.instance
        self._inputs, self._task = scenario.inputs, scenario.task
        modalities = [m for inputs in self._inputs for m in inputs.all_modalities if m.name]
        shapes = {modality.name: modality.shape for modality in modalities}

        def module(inputs: Inputs) -> nn.Module:
            built = adapt(
                model.build(shapes or inputs.shape, inputs.classes), scenario.model.values
            )
            is_branch = inputs.name and not inputs.modalities
            network: nn.Module = built.for_modality(inputs.name) if is_branch else built
            return network

        self._networks = {
            inputs.name: probed_network(scenario, inputs, partial(module, inputs))
            for inputs in self._inputs
        }
        self._variables = {name: network.init(0) for name, network in self._networks.items()}
        weights: dict[str, Tensor] = {}
        for variables in self._variables.values():
            weights |= variables["params"]
        self.parameters = sum(tensor.numel() for tensor in weights.values())
        heads = [name for network in self._networks.values() for name in network.head_names]
        self.head = ", ".join(dict.fromkeys(heads))
        self._rehearsed: dict[str, Rehearsed] = {}

    @classmethod
    def of(cls, scenario: Scenario, rehearsals: dict[str, Rehearsal]) -> Rehearsal:
        """Return the rehearsal of a scenario's model, made once and kept in ``rehearsals``.

        Raises:
            ConfigError: If the model does not take these inputs.
        """
        all_inputs = [asdict(inputs) for inputs in scenario.inputs]
        key = _key([scenario.model.spec, all_inputs, scenario.task.name])
        if key not in rehearsals:
            rehearsals[key] = cls(scenario)
        return rehearsals[key]

    def try_point(self, point: Point, away: int) -> Rehearsed:
        """Build a method and take a step of each of its passes.

        A method that differs from an earlier one only in fractions, which decide no shape, is built
        but takes no step.

        Args:
            point: The method and what is added to it.
            away: Number of clients that are held out of training.

        Returns:
            What was found out; of several modalities, the first that cannot be stacked.

        Raises:
            TooFew: If more samples in a batch would help.
            FedloomError: If the method uses nothing of what the study adds to it.
            Exception: Whatever building the method or taking a step raises.
        """
        spec = cast("MethodSpec", {"method": point.spec, **point.added_components})
        training = Training(**point.training)
        method_components = method_components_of(spec)
        if len(self._networks) > 1:
            modality_rounds.check_shared_weights(
                not declaration_of(method_components.method).modalities, self._networks
            )
        results = []
        for inputs in self._inputs:
            recorder = UseRecorder(method_components)
            modalities = inputs.modalities
            context = BuildContext(
                network=self._networks[inputs.name],
                training=training,
                classes=inputs.classes,
                clients=2,
                shape=inputs.shape,
                absent_clients=away,
                task=self._task,
                shapes={modality.name: modality.shape for modality in modalities},
                tokens=frozenset(modality.name for modality in modalities if modality.tokens),
            )
            attempt = _Attempt(
                recorder.method_components, context, inputs, self._variables[inputs.name]
            )
            key = _key([inputs.name, _shape(spec), _shape(_lasting(point.training)), away])
            if key not in self._rehearsed:
                self._rehearsed[key] = Rehearsed(attempt.reason(), attempt.traces())
                recorder.check(spec)
            else:
                attempt.build()
            results.append(self._rehearsed[key])
        return next((result for result in results if result.unstackable), results[0])


@dataclass(frozen=True)
class _Attempt:
    """A method that is tried with one model, and the inputs of the model."""

    method_components: MethodComponents
    context: BuildContext
    inputs: Inputs
    variables: Tree

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

    def _fresh_context(self) -> BuildContext:
        """Return the context with a view of the network, so that no trial changes a later one."""
        return replace(self.context, network=self.context.network.view())

    def build(self) -> Method:
        """Build the method, which may compute with the model, on the first device that can."""
        for device in self._devices[:-1]:
            with contextlib.suppress(Exception), torch.device(device):
                return build(self.method_components, self._fresh_context())
        return build(self.method_components, self._fresh_context())

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
            return error_text.describe(stack_error)
        for larger in range(size + 1, SUFFICIENT_BATCH + 1):
            if self._error(larger) is None:
                raise TooFew(error_text.describe(error), larger)
        raise error

    @torch.no_grad()
    def traces(self) -> frozenset[str] | None:
        """Return the names of what is recorded of a round; None if only training can tell."""
        with contextlib.suppress(Exception):
            method = build(self.method_components, self._fresh_context())
            server, client = method.init(self.variables)
            traces = method.trace(server) if method.trace else {}
            if method.trace_clients:
                traces = {**traces, **method.trace_clients(trees.repeat(client, 2))}
            return frozenset(traces)
        return None

    def _error(self, size: int, stacked: bool = False) -> Exception | None:
        """Return the error with batches of a size, for one client or for a stack of two."""
        last_error = None
        for device in self._devices:
            try:
                with torch.device(device):
                    method = build(self.method_components, self._fresh_context())
                _Trial(self, method, size, device, stacked).take_steps()
                return None
            except Exception as error:
                last_error = error
        return last_error


@dataclass(frozen=True)
class _Trial:
    """A step of each pass of a method, with batches of a size, for one client or a stack of two."""

    attempt: _Attempt
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
        for phase in dry_round.with_single_steps(self.method).phases:
            state, roster = self._state(), self._roster(phase)
            schedule = RoundSchedule(1, (roster,), self._arrays, self.attempt.context.training)
            results = dry_round.run_first_steps(
                phase, state, roster, schedule, backend, swept_samples=self.size
            )
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

    def _roster(self, phase: Phase) -> Roster:
        """Return the clients, with a batch for every pass of a phase."""
        sizes = torch.full((self._clients,), self.size, dtype=torch.float64, device=self.device)
        schedules = tuple(map(self._schedule, phase.passes))
        return Roster(torch.arange(self._clients), sizes, schedules)

    def _schedule(self, pass_: Pass | Sweep) -> Schedule:
        """Return a batch for each client, with samples of each class if the pass asks for them."""
        context = self.attempt.context
        if isinstance(pass_, Sweep):
            return self._batches(np.arange(self.size))
        per_class, training = pass_.sampling.per_class, context.training
        samples = np.arange(self.size)
        if per_class:
            samples = np.arange(context.classes).repeat(min(per_class, SUFFICIENT_BATCH))
        is_keyed = context.network.random or self._arrays.random or pass_.sampling.needs_keys
        is_weighted = training.class_weights != "none"
        refresh_sizes = [refresh.batch_count * self.size for refresh in pass_.refreshes]
        return replace(
            self._batches(samples),
            key=np.arange(self._clients) if is_keyed else None,
            refresh_index=tuple(
                self._batches(np.resize(np.arange(self.size), size)).index for size in refresh_sizes
            ),
            class_weights=np.ones((self._clients, context.classes)) if is_weighted else None,
            smoothing=training.label_smoothing,
        )

    def _batches(self, samples: np.ndarray) -> Schedule:
        """Return the same batch for every client, in which all samples count."""
        index = np.tile(samples, (self._clients, 1, 1))
        return Schedule(index, np.ones(index.shape, bool), np.ones(self._clients, np.int64))

    @cached_property
    def _arrays(self) -> Arrays:
        """Random inputs, as many as a batch needs."""
        passes = [pass_ for phase in self.method.phases for pass_ in phase.passes]
        is_by_class = any(isinstance(p, Pass) and p.sampling.per_class for p in passes)
        classes = self.attempt.context.classes if is_by_class else 0
        return self._samples(max(self.size, classes))

    def _samples(self, count: int) -> Arrays:
        """Random inputs of the data set's shape; tokens where it has them."""
        inputs, context = self.attempt.inputs, self.attempt.context
        random = np.random.default_rng(0)
        augmentation = context.training.augmentation
        modalities = inputs.all_modalities
        augmentations = (
            augmentation_by_modality(modalities, augmentation) if inputs.modalities else {}
        )
        y = context.task.invent(count, inputs.classes, modalities[0].shape)

        def arrays(modality: Modality) -> Arrays:
            shape = (count, *modality.shape)
            if modality.tokens:
                x = random.integers(modality.tokens, size=shape)
            else:
                x = random.standard_normal(shape).astype(np.float32)
            own_augmentation = augmentations.get(modality, augmentation)
            return Arrays(x, y, None, self.device, augmentation=own_augmentation)

        samples = inputs.tree(arrays)
        return SeveralArrays(samples) if inputs.modalities else samples


_prepare_meta = cache(torch_internals.register_fast_meta_kernels)


def _lasting(training: Values) -> Values:
    """Keys of training without those that say how long something is done, not what.

    The latter are all whole numbers but the batch size.
    """
    lasting = {key: value for key, value in training.items() if type(value) is not int}
    return {**lasting, "batch_size": min(training["batch_size"], SUFFICIENT_BATCH)}


def _shape(spec: Any) -> Any:
    """Return a spec that has of fractions only whether they are 0, and whether they are below 1.

    Other differences between fractions decide no shape.
    """
    if isinstance(spec, Mapping):
        return {key: _shape(value) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [_shape(value) for value in spec]
    return [spec == 0, abs(spec) < 1] if isinstance(spec, float) else spec


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
