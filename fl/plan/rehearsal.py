"""Every model and method of a study, tried before anything is trained.

Whether a model, a method, what is added to it and a batch size fit each other shows only when they
are combined. Here they are combined for one step of each pass (`fl.plan.trial_steps`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fl.api.method import BuildContext, declaration_of
from fl.api.network import Network
from fl.api.task import DEFAULT
from fl.api.training import Training
from fl.base import plugins
from fl.base.errors import ConfigError, ConfigProblems, FedloomError
from fl.base.specs import MethodSpec
from fl.base.units import quantity
from fl.engine.backends import STACKING_BACKENDS, NothingToTrain
from fl.plan.components import Choice, Inputs
from fl.plan.config import Values
from fl.plan.grids import Point
from fl.plan.method_entries import MethodEntry
from fl.plan.model_trials import (
    are_probabilities,
    check_second_build,
    probed_network,
    try_samples,
)
from fl.plan.run_spec import method_components_of
from fl.plan.scenario import Scenario
from fl.plan.trial_steps import CPU, SUFFICIENT_BATCH, Attempt, TooFew, UseRecorder
from fl.pytorch.construction import adapt
from fl.pytorch.memory import keeping_freed_memory


@dataclass(frozen=True)
class Rehearsed:
    """The result of trying a point.

    Attributes:
        unstackable: Why clients cannot be trained in one stack; empty if they can.
        traces: Names of what is recorded of a round; None if only training can tell.
        has_training_passes: Whether clients make a pass whose length training keys decide.
        state_bytes: Bytes of the server's state, and of a client's; of a server that keeps
            something of each client, those for two clients. Zeros if only training can tell.
        is_linear: See `fl.api.network.Network`; False where clients differ in modality.
        participation_bytes: `Attempt.participation_bytes`.
    """

    unstackable: str
    traces: frozenset[str] | None
    has_training_passes: bool
    state_bytes: tuple[int, int]
    is_linear: bool
    participation_bytes: Callable[[int], tuple[int, int]] = field(compare=False)


@dataclass(frozen=True)
class Findings:
    """Facts about the models of a study that are found out by trying them.

    Attributes:
        parameters: Number of trained weights, by the texts of model and data set.
        heads: Layers that make the outputs, by the text of the model.
        cache: Rehearsals, which are made once for all studies of a plan.
        without_passes: Labels of entries of which no client makes a training pass.
        notes: What the study's author should know of the models.
    """

    parameters: dict[str, dict[str, int]]
    heads: dict[str, str]
    cache: dict[str, Rehearsal]
    without_passes: set[str]
    notes: list[str]


def rehearse(
    scenarios: Iterable[Scenario],
    entries: Mapping[MethodEntry, Scenario],
    findings: Findings,
    problems: ConfigProblems,
) -> dict[tuple[str, str], Rehearsed]:
    """Try models, and methods of which nothing is known to be wrong.

    Args:
        scenarios: The different scenarios of a study's entries.
        entries: The right entries, with the scenario of each.
        findings: Gets what is found out.
        problems: Collects what is wrong.

    Returns:
        The result of each point that was tried, by label of its entry and `Point.key`.
    """
    tried: list[Scenario] = []
    rehearsed: dict[tuple[str, str], Rehearsed] = {}
    with keeping_freed_memory():
        for scenario in scenarios:
            with problems.collected():
                key = model_key(scenario)
                if key not in findings.cache:
                    findings.cache[key] = Rehearsal(scenario)
                rehearsal = findings.cache[key]
                parameters = findings.parameters[scenario.model.text]
                parameters.setdefault(scenario.dataset.text, rehearsal.parameters)
                if rehearsal.head:
                    findings.heads[scenario.model.text] = rehearsal.head
                if rehearsal.gives_probabilities:
                    findings.notes.append(_note_on_probabilities(scenario))
                elif rehearsal.has_bounded_outputs:
                    findings.notes.append(_note_on_bounds(scenario))
                if rehearsal.depends_on_batch:
                    findings.notes.append(_note_on_batches(scenario))
                if rehearsal.tied_head:
                    findings.notes.append(_note_on_tied_head(scenario, rehearsal))
                if rehearsal.surplus_outputs:
                    findings.notes.append(_note_on_surplus(scenario, rehearsal.surplus_outputs))
                tried.append(scenario)
        for entry, scenario in entries.items():
            if scenario in tried:
                with problems.collected():
                    rehearsal = findings.cache[model_key(scenario)]
                    for key, result in rehearse_entry(entry, rehearsal, scenario).items():
                        rehearsed[entry.label, key] = result
    findings.without_passes.update(
        label for (label, _), result in rehearsed.items() if not result.has_training_passes
    )
    return rehearsed


def _note_on_probabilities(scenario: Scenario) -> str:
    return (
        f"the outputs of {scenario.model.text} are probabilities: none is negative, and their sum "
        "is 1. The loss takes their softmax once more, by which training is slow. Try: leave out "
        "the softmax at the end of the model"
    )


def _note_on_bounds(scenario: Scenario) -> str:
    return (
        f"the outputs of {scenario.model.text} lie between 0 and 1, as those of a sigmoid. The "
        "loss takes their softmax, which cannot become sure of a class. Try: leave out the sigmoid "
        "at the end of the model"
    )


def _note_on_batches(scenario: Scenario) -> str:
    return (
        f"outputs of {scenario.model.text} for a sample depend on the other samples of its batch, "
        "so that scores depend on who is scored together. Try: the first axis is that of samples, "
        "as by `batch_first=True` in layers of sequences, `softmax(dim=1)`, means over later axes"
    )


def _note_on_tied_head(scenario: Scenario, rehearsal: Rehearsal) -> str:
    return (
        f"the head of {scenario.model.text}, {rehearsal.head}, shares the weight "
        f"{', '.join(rehearsal.tied_head)} with an earlier layer. Methods that keep the head "
        "apart leave this weight in the body"
    )


def _note_on_surplus(scenario: Scenario, count: int) -> str:
    return (
        f"{scenario.model.text} has {quantity(count, 'output')} more than {scenario.dataset.text} "
        "has classes, so that it can predict a class that no sample has. Try: build the last layer "
        "with `classes` outputs, unless the model is published so"
    )


def rehearse_entry(
    entry: MethodEntry, rehearsal: Rehearsal, scenario: Scenario
) -> dict[str, Rehearsed]:
    """Try each point of an entry; return what is found out, by `Point.key`.

    Raises:
        ConfigError: If the method cannot be built for the scenario's model or cannot train it,
            or cannot train it with the chosen backend.
    """
    model, dataset = scenario.model.text, scenario.dataset.text
    absent_clients = int(scenario.partition.has_unseen_clients)
    rehearsed: dict[str, Rehearsed] = {}
    for point in entry.points:
        try:
            rehearsed[point.key] = rehearsal.try_point(point, absent_clients)
        except TooFew as error:
            problem = f"is {point.training['batch_size']}, too few for {entry.label} with "
            problem += f"{model} on {dataset} ({error})"
            allowed = f"{error.sufficient_size} or more"
            raise entry.error("batch_size", problem, allowed) from None
        except FedloomError as error:
            problem = f"with {scenario.model.title or model}: {error}"
            if rehearsal.tied_head:
                problem += f" ({_note_on_tied_head(scenario, rehearsal)})"
            if isinstance(error, NothingToTrain) and rehearsal.is_all_head:
                problem += f", as all its weights belong to its head, {rehearsal.head}"
                advice = "a model with a layer before its head"
                raise ConfigError(entry.location, problem, advice=advice) from None
            raise ConfigError(entry.location, problem) from None
        except (Exception, SystemExit) as error:
            problem = f"{entry.method.name} cannot train {model} on {dataset} "
            problem += f"({plugins.describe(error)})"
            advice = "a method, terms and training keys that fit this model and its inputs"
            advice = "" if plugins.plugin_line(error) else advice
            raise ConfigError(entry.location, problem, advice=advice) from None
        backend, reason = entry.execution.backend, rehearsed[point.key].unstackable
        if reason and backend in STACKING_BACKENDS:
            problem = f"is {backend}, but clients of {entry.label} cannot be stacked: {reason}"
            raise ConfigError(entry.location / "execution" / "backend", problem, "auto, loop")
    return rehearsed


def check_traces(analyses: Iterable[Choice], rehearsed: Iterable[Rehearsed]) -> None:
    """Raise `ConfigError` for an analysis of traces that no entry of the study records."""
    recorded = [result.traces for result in rehearsed]
    for analysis in analyses:
        names = {*getattr(analysis.component.target, "traces", ())}
        if names and recorded and not any(r is None or names <= r for r in recorded):
            problem = f"reads {', '.join(sorted(names))} of every round, which no entry records"
            advice = "add an entry of a method that records it"
            raise ConfigError(analysis.location, problem, advice=advice)


class Rehearsal:
    """A model with the inputs of a data set; one of each modality, where clients differ in it.

    Attributes:
        parameters: Number of trained weights; what modalities share counts once.
        head: Names of the layers that make the outputs, in words; empty if there are none.
        gives_probabilities: Whether the outputs for the classes are not negative, with sum 1.
        has_bounded_outputs: Whether the outputs for the classes lie between 0 and 1; only known of
            models of plugins.
        depends_on_batch: Whether outputs for a sample depend on the other samples of its batch;
            only known of models of plugins.
        surplus_outputs: Number of outputs beyond one for each class.
        tied_head: Weights of the head that an earlier layer has too.
        is_all_head: Whether the head has all trained weights.
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

        self._networks: dict[str, Network] = {}
        self.gives_probabilities, self.surplus_outputs = False, 0
        self.has_bounded_outputs = self.depends_on_batch = False
        for inputs in self._inputs:
            build = partial(module, inputs)
            network, outputs = probed_network(scenario, inputs, copies(build))
            if not scenario.model.component.file.is_relative_to(plugins.FL):
                check_second_build(scenario.model, network, outputs, build, inputs)
                if trial := try_samples(network, inputs):
                    self.depends_on_batch |= trial.depends_on_batch
                    is_bounded = bool(((trial.outputs >= 0) & (trial.outputs <= 1)).all())
                    is_classifier = DEFAULT in (self._task.name, self._task.model_task)
                    self.has_bounded_outputs |= is_classifier and inputs.classes > 1 and is_bounded
            self._networks[inputs.name] = network
            self.gives_probabilities |= inputs.classes > 1 and are_probabilities(outputs)
            if DEFAULT in (self._task.name, self._task.model_task):
                surplus = outputs.shape[1] - inputs.classes
                self.surplus_outputs = max(self.surplus_outputs, surplus)
        self._variables = {name: network.init(0) for name, network in self._networks.items()}
        weights: dict[str, Tensor] = {}
        for variables in self._variables.values():
            weights |= variables["params"]
        self.parameters = sum(tensor.numel() for tensor in weights.values())
        heads = [name for network in self._networks.values() for name in network.head_names]
        self.head = ", ".join(dict.fromkeys(heads))
        self.tied_head = [name for n in self._networks.values() for name in n.tied_head]
        self.is_all_head = all({*n.names["params"]} <= n.head for n in self._networks.values())
        self._rehearsed: dict[str, Rehearsed] = {}

    def try_point(self, point: Point, absent_clients: int) -> Rehearsed:
        """Build a method and take a step of each of its passes.

        A method that differs from an earlier one only in fractions, which decide no shape, is built
        but takes no step.

        Args:
            point: The method and what is added to it.
            absent_clients: Number of clients that are held out of training.

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
            from fl.engine.modality_rounds import check_shared_weights

            check_shared_weights(
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
                absent_clients=absent_clients,
                task=self._task,
                shapes={modality.name: modality.shape for modality in modalities},
                tokens=frozenset(modality.name for modality in modalities if modality.tokens),
            )
            attempt = Attempt(
                recorder.method_components, context, inputs, self._variables[inputs.name]
            )
            key = _key(
                [inputs.name, _shape(spec), _shape(_lasting(point.training)), absent_clients]
            )
            if key not in self._rehearsed:
                self._rehearsed[key] = Rehearsed(
                    attempt.reason(),
                    attempt.traces(),
                    attempt.has_training_passes(),
                    attempt.state_bytes(),
                    all(network.is_linear for network in self._networks.values()),
                    attempt.participation_bytes,
                )
                recorder.check(spec)
                if method_components.asynchronous:
                    attempt.check_asynchronous()
                if method_components.selection:
                    attempt.check_selection()
            else:
                attempt.build()
            results.append(self._rehearsed[key])
        return next((result for result in results if result.unstackable), results[0])


RATE_KEYS = frozenset({"lr", "lr_decay", "schedule"})
"""Keys of training from which a step gets one number, its learning rate."""


def _lasting(training: Values) -> Values:
    """Keys of training without those that say how long or how fast something is done, not what.

    Those of how long are all whole numbers but the batch size.
    """
    lasting = {
        key: value
        for key, value in training.items()
        if type(value) is not int and key not in RATE_KEYS
    }
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


class SharedWeight(nn.Parameter):
    """A weight whose copies share its values."""

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Parameter:
        """Return a parameter that is another object over the same memory."""
        return nn.Parameter(self.detach(), self.requires_grad)


class SharedBuffer(Tensor):
    """A buffer whose copies share its values."""

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        """Return a tensor that is another object over the same memory."""
        return self.detach().as_subclass(Tensor)


def copies(build_module: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that builds a module once and then copies it, all with the same values.

    A method asks for many modules of the same model. Their values do not matter here, and initial
    weights take long to draw and to copy. On the meta device, and what cannot be copied, is built
    each time.
    """
    first: list[nn.Module] = []

    def build() -> nn.Module:
        if torch.empty(0).device != CPU:
            return build_module()
        if not first:
            first.append(build_module())
            for weight in first[0].parameters():
                if type(weight) is nn.Parameter:
                    weight.__class__ = SharedWeight
            for buffer in first[0].buffers():
                if type(buffer) is Tensor:
                    buffer.__class__ = SharedBuffer
        try:
            return deepcopy(first[0])
        except Exception:  # A model of a plugin, with a lock or a file.
            return build_module()

    return build


def model_key(scenario: Scenario) -> str:
    """Return the key of a scenario's model and inputs; one rehearsal serves all of one key."""
    all_inputs = [asdict(inputs) for inputs in scenario.inputs]
    return _key([scenario.model.spec, all_inputs, scenario.task.name])
