"""Every model and method of a study, tried before anything is trained.

Whether a model, a method, what is added to it and a batch size fit each other shows only when they
are combined. Here they are combined for one step, of a stack of two clients or, where that cannot
be, of one. Of a large model the step is taken on PyTorch's meta device, which knows shapes and
computes no numbers; what asks for a number is taken again on the CPU.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fl.api import trees
from fl.api.method import (
    COUNTS,
    PAYLOAD,
    BuildContext,
    Method,
    Pass,
    Phase,
    Sampling,
    Sweep,
    declaration_of,
)
from fl.api.protocols import Batch
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base import error_text
from fl.base.errors import FedloomError
from fl.base.specs import MethodSpec
from fl.data.inputs import Modality
from fl.engine import modality_rounds
from fl.engine.assembly import MethodComponents, build
from fl.engine.loader import add_reference_outputs
from fl.engine.sample_arrays import Arrays, SeveralArrays, augmentation_by_modality
from fl.plan.components import Inputs
from fl.plan.config import Values
from fl.plan.grids import Point
from fl.plan.model_probe import probed_network
from fl.plan.run_spec import method_components_of
from fl.plan.scenario import Scenario
from fl.plan.use_recorder import UseRecorder
from fl.pytorch import torch_internals

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
            built: Any = model.build(shapes or inputs.shape, inputs.classes)
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
        """Take a step of each pass; of passes that compute the same, of one."""
        steps: list[tuple[Any, ...]] = []
        for phase in self.method.phases:
            self._sweep(phase)
            for pass_ in phase.passes:
                if isinstance(pass_, Sweep):
                    continue
                functions = (phase.payload, phase.send, pass_.begin, pass_.loss, pass_.reference)
                step = (*functions, pass_.sampling.per_class, pass_.sampling.needs_keys)
                if step not in steps:
                    self._step(phase, pass_)
                    steps.append(step)

    def _mapped(self, function: Callable[..., Any], *dims: int | None) -> Callable[..., Any]:
        return trees.vmap(function, dims) if self.stacked else function

    def _step(self, phase: Phase, pass_: Pass) -> None:
        """Compute a loss of a pass and its gradient."""
        message, client = self._received(phase)
        batch = self._batch(pass_.sampling)
        work = self._mapped(pass_.begin, None, 0)(message, client)
        params = trees.apply(lambda w: w.detach().requires_grad_(), work["params"])
        work = {**work, "params": params}
        reference = pass_.reference and self._mapped(pass_.reference, None, 0, 0)
        batch = add_reference_outputs(reference, message, work, batch)
        losses, _ = self._mapped(pass_.loss, None, 0, 0)(message, work, batch)
        self._check(losses.sum(), params)

    @torch.no_grad()
    def _sweep(self, phase: Phase) -> None:
        """Compute each sweep with which a phase begins; others need what a pass uploads."""
        sweeps = [*itertools.takewhile(lambda pass_: isinstance(pass_, Sweep), phase.passes)]
        if not sweeps:
            return
        message, client = self._received(phase)
        batch: Tree = self._batch(Sampling())
        upload: Tree = {}
        for sweep in sweeps:
            assert isinstance(sweep, Sweep)
            result = self._mapped(sweep.look, None, 0, 0, 0)(message, client, upload, batch)
            client, upload = self._mapped(sweep.end, None, 0, 0, 0)(message, client, upload, result)

    def _received(self, phase: Phase) -> tuple[Tree, Tree]:
        """Return what the server sends to all in a phase, and the tree of one client or two."""
        server, client = self.method.init(trees.to(self.attempt.variables, self.device))
        counts = torch.ones(self.attempt.context.classes, dtype=torch.int64)
        client = {**client, "id": torch.tensor(0), COUNTS: counts}
        if self.stacked:
            client = trees.repeat(client, 2)
        if phase.payload:
            client = {**client, PAYLOAD: self._mapped(phase.payload, None, 0)(server, client)}
        return phase.send(server) if phase.send else server, client

    def _check(self, loss: Tensor, params: Tree) -> None:
        """Raise `FedloomError` if some weights get no gradient, or if a small batch's loss is bad.

        Whether the loss of a larger batch is finite depends on values, and shows in training.
        """
        if not loss.requires_grad:
            raise FedloomError("a pass trains no weight of this model")
        gradients = torch.autograd.grad(loss, trees.leaves(params), allow_unused=True)
        names = zip(_names(params), gradients, strict=True)
        unused = [name for name, gradient in names if gradient is None]
        if unused:
            advice = "a model whose weights all have a part in its outputs"
            raise FedloomError(f"no gradient reaches {', '.join(unused[:5])}", advice=advice)
        is_small_batch = self.attempt.context.training.batch_size < SUFFICIENT_BATCH
        if is_small_batch and self.device == CPU and not torch.isfinite(loss):
            raise FedloomError("the loss is not finite")

    def _batch(self, sampling: Sampling) -> Batch:
        """Random samples with equal weights, as many of each class as the pass asks for."""
        context, per_class = self.attempt.context, sampling.per_class
        count = context.classes if per_class else self.size
        arrays = self._samples(count)
        index = torch.arange(count).repeat_interleave(min(per_class or 1, SUFFICIENT_BATCH))
        keyed = context.network.random or arrays.random or sampling.needs_keys
        key = torch.arange(len(index)) if keyed else None
        batch = arrays.batch(index, torch.ones(len(index)), key)
        return trees.repeat(batch, 2) if self.stacked else batch

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


def _names(tree: Tree) -> Iterator[str]:
    """The names of a tree's leaves, in the order of `fl.api.trees.leaves`."""
    for name, leaf in tree.items():
        if isinstance(leaf, Tensor):
            yield name
        else:
            yield from _names(leaf)


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
