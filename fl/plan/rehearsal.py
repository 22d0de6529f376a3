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
from typing import Any

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
    declared,
)
from fl.api.network import Network
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base import faults, registry
from fl.base.errors import ConfigError, FedloomError
from fl.data.modality import Modality
from fl.engine import modality
from fl.engine.arrays import Arrays, SeveralArrays, augmented
from fl.engine.assembly import Composed, build
from fl.engine.loader import ask
from fl.plan.added import Added
from fl.plan.components import Inputs
from fl.plan.grids import Point
from fl.plan.run_spec import RunSpec
from fl.plan.scenario import Scenario
from fl.pytorch import private
from fl.pytorch.memory import exhausted

ENOUGH = 4
"""Samples in a batch from which on more make no difference to whether a step can be taken: a
method that halves its batches gives batch normalisation two values to work on.
"""

META = torch.device("meta")
CPU = torch.device("cpu")

SMALL = 100_000
"""Weights of a model up to which a step is quicker on the CPU: the meta device takes a second to
load, and what it takes of an operation does not depend on its size.
"""


class TooFew(FedloomError):
    """A batch has too few samples; ``least`` would do."""

    def __init__(self, problem: str, least: int) -> None:
        self.least = least
        super().__init__(problem)


@dataclass(frozen=True)
class Rehearsed:
    """What is known of a point once it was tried.

    Attributes:
        unstackable: Why clients cannot be trained in one stack, or "" if they can.
        traces: The names of what is recorded of a round; None where that shows in training alone.
    """

    unstackable: str
    traces: frozenset[str] | None


class Rehearsal:
    """A model on what it sees of a data set; of each modality, where clients differ in it.

    Attributes:
        parameters: The number of trained weights; what modalities share counts once.
    """

    def __init__(self, scenario: Scenario) -> None:
        _, made = registry.entry_of("model", scenario.model.spec)
        self._kinds, self._task = scenario.inputs, scenario.task
        named = [modality for kind in self._kinds for modality in kind.kinds if modality.name]
        shapes = {modality.name: modality.shape for modality in named}

        def module(kind: Inputs) -> nn.Module:
            whole: Any = made.build(shapes or kind.shape, kind.classes)
            alone: nn.Module = whole.of(kind.name) if kind.name and not kind.parts else whole
            return alone

        self._networks = {
            kind.name: _network(scenario, kind, partial(module, kind)) for kind in self._kinds
        }
        self._variables = {name: network.init(0) for name, network in self._networks.items()}
        weights: dict[str, Tensor] = {}
        for variables in self._variables.values():
            weights |= variables["params"]
        self.parameters = sum(tensor.numel() for tensor in weights.values())
        self._tried: dict[str, Rehearsed] = {}

    @classmethod
    def of(cls, scenario: Scenario, made: dict[str, Rehearsal]) -> Rehearsal:
        """That of a scenario's model on what it sees, made once among those ``made`` for a plan.

        Raises:
            ConfigError: If the model does not take these inputs.
        """
        kinds = [asdict(kind) for kind in scenario.inputs]
        key = _key([scenario.model.spec, kinds, scenario.task.name])
        if key not in made:
            made[key] = cls(scenario)
        return made[key]

    def try_point(self, point: Point, away: int) -> Rehearsed:
        """Build a method and take a step of each of its passes.

        A method that differs from an earlier one only in fractions, which decide no shape, is built
        but takes no step.

        Args:
            away: How many clients are held out of training.

        Raises:
            TooFew: If more samples in a batch would help.
            FedloomError: If the method uses nothing of what the study adds to it.
            Exception: Whatever building the method or taking a step raises.
        """
        spec = {"method": point.spec, **point.added}
        training = Training(**point.training)
        composed = RunSpec(spec).composed
        if len(self._networks) > 1:
            modality.check(not declared(composed.method).modalities, self._networks)
        tried = []
        for kind in self._kinds:
            added = Added(composed)
            context = BuildContext(
                network=self._networks[kind.name],
                training=training,
                classes=kind.classes,
                clients=2,
                shape=kind.shape,
                away=away,
                task=self._task,
                shapes={modality.name: modality.shape for modality in kind.parts},
                tokens=frozenset(modality.name for modality in kind.parts if modality.tokens),
            )
            stage = _Stage(added.composed, context, kind, self._variables[kind.name])
            key = _key([kind.name, _shape(spec), _shape(_lasting(point.training)), away])
            if key not in self._tried:
                self._tried[key] = Rehearsed(stage.reason(), stage.traces())
                added.check(spec)
            else:
                stage.build()
            tried.append(self._tried[key])
        return next((rehearsed for rehearsed in tried if rehearsed.unstackable), tried[0])


@dataclass(frozen=True)
class _Stage:
    """A method that is tried with one model, and what the model sees."""

    composed: Composed
    context: BuildContext
    data: Inputs
    variables: Tree

    @cached_property
    def _devices(self) -> list[torch.device]:
        """Where to try, in turn, until it succeeds."""
        few = self.context.training.batch_size < ENOUGH
        small = sum(tensor.numel() for tensor in self.variables["params"].values()) <= SMALL
        # Whether a loss is finite shows on the CPU alone, and depends on the size of small batches.
        if few or small:
            return [CPU]
        _prepare_meta()
        return [META, CPU]

    def _fresh_context(self) -> BuildContext:
        """Return the context with a view of the network, so that no trial changes a later one."""
        return replace(self.context, network=self.context.network.view())

    def build(self) -> Method:
        """The method, which may look at a pass of the model, on the first device that can."""
        for device in self._devices[:-1]:
            with contextlib.suppress(Exception), torch.device(device):
                return build(self.composed, self._fresh_context())
        return build(self.composed, self._fresh_context())

    def reason(self) -> str:
        """See `Rehearsal.try_point`."""
        size = self.context.training.batch_size
        together = self._trouble(min(size, ENOUGH), stacked=True)
        if together is None:
            return ""
        trouble = self._trouble(min(size, ENOUGH))
        if trouble is None:
            return faults.told(together)
        for more in range(size + 1, ENOUGH + 1):
            if self._trouble(more) is None:
                raise TooFew(faults.told(trouble), more)
        raise trouble

    @torch.no_grad()
    def traces(self) -> frozenset[str] | None:
        """See `Rehearsed`."""
        with contextlib.suppress(Exception):
            method = build(self.composed, self._fresh_context())
            server, client = method.init(self.variables)
            kept = method.trace(server) if method.trace else {}
            if method.trace_clients:
                kept = {**kept, **method.trace_clients(trees.repeat(client, 2))}
            return frozenset(kept)
        return None

    def _trouble(self, size: int, stacked: bool = False) -> Exception | None:
        """What goes wrong with batches of that size, for one client or for a stack of two."""
        trouble = None
        for device in self._devices:
            try:
                with torch.device(device):
                    method = build(self.composed, self._fresh_context())
                    _Trial(self, method, size, device, stacked).take_steps()
                return None
            except Exception as error:
                trouble = error
        return trouble


@dataclass(frozen=True)
class _Trial:
    """A step of each pass of a method, with batches of a size, for one client or a stack of two."""

    stage: _Stage
    method: Method
    size: int
    device: torch.device
    stacked: bool

    def take_steps(self) -> None:
        """Take them; of passes that compute the same, one."""
        taken: list[tuple[Any, ...]] = []
        for phase in self.method.phases:
            self._sweep(phase)
            for pass_ in phase.passes:
                if isinstance(pass_, Sweep):
                    continue
                functions = (phase.payload, phase.send, pass_.begin, pass_.loss, pass_.reference)
                step = (*functions, pass_.sampling.per_class, pass_.sampling.keyed)
                if step not in taken:
                    self._step(phase, pass_)
                    taken.append(step)

    def _mapped(self, function: Callable[..., Any], *dims: int | None) -> Callable[..., Any]:
        return trees.vmap(function, dims) if self.stacked else function

    def _step(self, phase: Phase, pass_: Pass) -> None:
        """A loss of a pass and its gradient."""
        sent, client = self._received(phase)
        batch = self._batch(pass_.sampling)
        work = self._mapped(pass_.begin, None, 0)(sent, client)
        params = trees.apply(lambda w: w.detach().requires_grad_(), work["params"])
        work = {**work, "params": params}
        reference = pass_.reference and self._mapped(pass_.reference, None, 0, 0)
        batch = ask(reference, sent, work, batch)
        losses, _ = self._mapped(pass_.loss, None, 0, 0)(sent, work, batch)
        self._check(losses.sum(), params)

    @torch.no_grad()
    def _sweep(self, phase: Phase) -> None:
        """A look of each sweep with which a phase begins; others need what a pass uploads."""
        sweeps = [*itertools.takewhile(lambda pass_: isinstance(pass_, Sweep), phase.passes)]
        if not sweeps:
            return
        sent, client = self._received(phase)
        batch, upload = self._batch(Sampling()), dict[str, Any]()
        for sweep in sweeps:
            assert isinstance(sweep, Sweep)
            seen = self._mapped(sweep.look, None, 0, 0, 0)(sent, client, upload, batch)
            client, upload = self._mapped(sweep.end, None, 0, 0, 0)(sent, client, upload, seen)

    def _received(self, phase: Phase) -> tuple[Tree, Tree]:
        """What the server sends to all in a phase, and a client's tree, or that of two."""
        server, client = self.method.init(trees.to(self.stage.variables, self.device))
        counts = torch.ones(self.stage.context.classes, dtype=torch.int64)
        client = {**client, "id": torch.tensor(0), COUNTS: counts}
        if self.stacked:
            client = trees.repeat(client, 2)
        if phase.payload:
            client[PAYLOAD] = self._mapped(phase.payload, None, 0)(server, client)
        return phase.send(server) if phase.send else server, client

    def _check(self, loss: Tensor, params: Tree) -> None:
        """Refuse a loss that no weight, or not every weight, has a part in, and one of a small
        batch that is not finite; of other batches that depends on values, and shows in training.
        """
        if not loss.requires_grad:
            raise FedloomError("a pass trains no weight of this model")
        gradients = torch.autograd.grad(loss, trees.leaves(params), allow_unused=True)
        names = zip(_names(params), gradients, strict=True)
        unused = [name for name, gradient in names if gradient is None]
        if unused:
            allowed = "a model whose weights all have a part in its outputs"
            raise FedloomError(f"no gradient reaches {', '.join(unused[:5])}. Allowed: {allowed}")
        few = self.stage.context.training.batch_size < ENOUGH
        if few and self.device == CPU and not torch.isfinite(loss):
            raise FedloomError("the loss is not finite")

    def _batch(self, sampling: Sampling) -> dict[str, Any]:
        """Random samples with equal weights, as many of each class as the pass asks for."""
        context, per_class = self.stage.context, sampling.per_class
        count = context.classes if per_class else self.size
        arrays = self._samples(count)
        index = torch.arange(count).repeat_interleave(min(per_class or 1, ENOUGH))
        keyed = context.network.random or arrays.random or sampling.keyed
        key = torch.arange(len(index)) if keyed else None
        batch = arrays.batch(index, torch.ones(len(index)), key)
        return trees.repeat(batch, 2) if self.stacked else batch

    def _samples(self, count: int) -> Arrays:
        """Random inputs of the data set's shape; tokens where it has them."""
        data, context, draw = self.stage.data, self.stage.context, np.random.default_rng(0)
        augmentation = context.training.augmentation
        chosen = augmented(data.kinds, augmentation) if data.parts else {}
        y = context.task.invent(count, data.classes, data.kinds[0].shape)

        def made(kind: Modality) -> Arrays:
            shape = (count, *kind.shape)
            if kind.tokens:
                x = draw.integers(kind.tokens, size=shape)
            else:
                x = draw.standard_normal(shape).astype(np.float32)
            return Arrays(x, y, None, self.device, augmentation=chosen.get(kind, augmentation))

        samples = data.tree(made)
        return SeveralArrays(samples) if data.parts else samples


_prepare_meta = cache(private.quick_shapes)


def _names(tree: Tree) -> Iterator[str]:
    """The names of a tree's leaves, in the order of `fl.api.trees.leaves`."""
    for name, leaf in tree.items():
        if isinstance(leaf, Tensor):
            yield name
        else:
            yield from _names(leaf)


def _network(scenario: Scenario, kind: Inputs, make: Callable[[], nn.Module]) -> Network:
    """The model, once it has seen one input: zeros, or the last token, which it must know."""
    model, dataset = scenario.model, scenario.dataset
    x = kind.tree(
        lambda modality: (
            torch.full((1, *modality.shape), modality.tokens - 1)
            if modality.tokens
            else torch.zeros(1, *modality.shape)
        )
    )
    try:
        network = Network(make)
        if any(modality.tokens for modality in kind.kinds):
            variables = network.init(0)
            with torch.no_grad():
                network.eval(variables["params"], variables["buffers"], x)
        network.probe(x)
    except FedloomError as error:
        raise ConfigError(model.at, str(error)) from None
    except (Exception, SystemExit) as error:
        if exhausted(error):
            problem = f"{model.text} on {dataset.text} takes more memory than this machine gives"
            raise ConfigError(model.at, problem, "a smaller model") from None
        problem = f"{model.text} does not take the inputs of {dataset.text}, {_told(kind)}"
        # A model that takes a shape apart says no more than how long it is.
        if "values to unpack" not in str(error):
            problem += f" ({type(error).__name__}: {error})"
        raise ConfigError(model.at, problem, _suited(kind)) from None
    return network


def _suited(kind: Inputs) -> str:
    """The models that take such inputs, in words."""
    if kind.parts or kind.tokens:
        return "a model for such inputs" if kind.parts else "a model for tokens, such as lstm"
    if len(kind.shape) == 3:
        order = "a model for such inputs; images are [channels, height, width]"
        return f"{order}, and not of too few pixels"
    return "a model for such inputs, such as mlp; images are [channels, height, width]"


def _told(kind: Inputs) -> str:
    return " and ".join(
        (f"{modality.name} " if modality.name else "")
        + f"of shape {modality.shape}"
        + (f", {modality.tokens} different tokens" if modality.tokens else "")
        for modality in kind.kinds
    )


def _lasting(training: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of training without those that say how long something is done, not what: all whole
    numbers but the batch size.
    """
    kept = {key: value for key, value in training.items() if type(value) is not int}
    return {**kept, "batch_size": min(training["batch_size"], ENOUGH)}


def _shape(spec: Any) -> Any:
    """A spec, of whose fractions only that remains which decides more than a size: whether they
    are 0, and whether they are 1 or more.
    """
    if isinstance(spec, Mapping):
        return {key: _shape(value) for key, value in spec.items()}
    if isinstance(spec, list | tuple):
        return [_shape(value) for value in spec]
    return [spec == 0, abs(spec) < 1] if isinstance(spec, float) else spec


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
