"""A model of a study, tried with the inputs of a data set before any method is.

A model of the user's own is also built twice, and called with samples together and alone.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fl.api.network import Network
from fl.api.task import DEFAULT
from fl.api.trees import Tree, map_inputs
from fl.base import plugins
from fl.base.errors import ConfigError, FedloomError
from fl.base.units import first_of, quantity
from fl.data.dataset import Modality
from fl.plan.components import Choice, Inputs
from fl.plan.scenario import Scenario
from fl.pytorch.construction import LoraLinear, check_head, other_types
from fl.pytorch.memory import is_out_of_memory

MAX_TEXT = 300
"""Letters that are shown of an error of PyTorch."""

OWN_ERRORS = (AttributeError, NameError, ImportError, OSError)
"""Errors of a model that have another cause than its inputs."""

SPREAD = (1.0, 1e3)
"""Deviations of the random inputs with which a model of a plugin is tried."""
ROWS = 3
"""Number of these inputs."""


def probed_network(
    scenario: Scenario, inputs: Inputs, build_module: Callable[[], nn.Module]
) -> tuple[Network, Tensor]:
    """Return the model after a pass of one input, and its outputs for some examples in training.

    The input is zeros, or the last token, which the model must know.
    """
    model, dataset = scenario.model, scenario.dataset
    try:
        x = _example(inputs)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        problem = f"a sample of {dataset.text} takes more memory than this machine gives"
        raise ConfigError(dataset.location, problem, advice="smaller samples") from None
    try:
        network = Network(build_module)
        if any(modality.tokens for modality in inputs.all_modalities):
            variables = network.init(0)
            # Copies, as a change of a buffer in evaluation mode shall show in the probe.
            buffers = {name: buffer.clone() for name, buffer in variables["buffers"].items()}
            with torch.no_grad():
                network.eval(variables["params"], buffers, x)
        outputs = network.probe(x)
        _check_outputs(tuple(outputs.shape[1:]), inputs.classes, scenario)
        check_head(network.layers(LoraLinear), network.head_names)
    except FedloomError as error:
        raise ConfigError(model.location, str(error)) from None
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            problem = f"{model.text} on {dataset.text} takes more memory than this machine gives"
            raise ConfigError(model.location, problem, advice="a smaller model") from None
        raise _input_error(error, scenario, inputs, build_module) from None
    return network, outputs


def _input_error(
    error: BaseException,
    scenario: Scenario,
    inputs: Inputs,
    build_module: Callable[[], nn.Module],
) -> ConfigError:
    """Return the error for a model that failed with the inputs of a data set, with the cause."""
    model, dataset, text = scenario.model, scenario.dataset, " ".join(str(error).split())
    if isinstance(error, OWN_ERRORS):
        return ConfigError(model.location, f"{model.text} fails ({plugins.describe(error)})")
    problem = f"{model.text} does not take the inputs of {dataset.text}, {_text(inputs)}"
    advice = _suitable_models(inputs)
    # PyTorch says of tokens only that types of matrices differ.
    if inputs.tokens and _takes_numbers(build_module, _example(inputs)):
        problem += ", which are whole numbers, but numbers with fractions"
        return ConfigError(model.location, problem, advice=advice)
    types, embeddings = _types_and_embeddings(build_module)
    small = [f"{name} knows {n}" for name, n in embeddings.items() if n < inputs.tokens]
    if small and isinstance(error, IndexError):
        problem += f": layer {' and '.join(small)}"
        has_key = "tokens" in model.component.declared
        advice = f"leave out `tokens`, or set it to {inputs.tokens}" if has_key else ""
        advice = advice or f"an embedding for {inputs.tokens} tokens"
    elif "values to unpack" not in text:  # It says only how long a shape is.
        problem += f" ({type(error).__name__}: {text[:MAX_TEXT]})"
    if type(error).__module__.startswith("torch._dynamo"):
        advice = "leave out torch.compile; `execution: {backend: compiled}` compiles the steps"
    elif "dtype" in text or "scalar type" in text:
        if types:
            problem += f". It is built in {' and '.join(types)}, and a run computes in float32"
        advice = "let forward keep to the type of its inputs, x.dtype, which is float32"
    return ConfigError(model.location, problem, advice=advice)


def _types_and_embeddings(
    build_module: Callable[[], nn.Module],
) -> tuple[list[str], dict[str, int]]:
    """Return the types of a model other than float32, and the numbers of tokens it has rows for."""
    with contextlib.suppress(Exception, SystemExit):
        module = build_module()
        layers = {n: m for n, m in module.named_modules() if isinstance(m, nn.Embedding)}
        return other_types(module), {name: layer.num_embeddings for name, layer in layers.items()}
    return [], {}


def check_second_build(
    model: Choice,
    network: Network,
    outputs: Tensor,
    build_module: Callable[[], nn.Module],
    inputs: Inputs,
) -> None:
    """Refuse a model of which a second one, built under the same seed, differs.

    A count of calls or random numbers that nobody seeds would do that.

    Args:
        model: The model.
        network: The first one.
        outputs: Outputs of the first one for some examples.
        build_module: Function that builds a new one.
        inputs: The inputs of both.

    Raises:
        ConfigError: If weights, buffers or outputs differ, or a second one cannot be built.
    """
    try:
        second = Network(build_module)
        second_outputs = second.probe(_example(inputs))
        first_variables, second_variables = network.init(0), second.init(0)
    except FedloomError as error:
        raise ConfigError(model.location, str(error)) from None
    except (Exception, SystemExit) as error:
        problem = f"a second model of {model.text} cannot be built ({plugins.describe(error)})"
        raise ConfigError(model.location, problem) from None
    tensors, second_tensors = (
        {**variables["params"], **variables["buffers"]}
        for variables in (first_variables, second_variables)
    )
    differing = sorted(tensors.keys() ^ second_tensors.keys()) or [
        name for name, tensor in tensors.items() if not _are_equal(tensor, second_tensors[name])
    ]
    evaluations: list[Tensor] = []
    with contextlib.suppress(Exception):  # The step of a method shows the error.
        evaluations += [_evaluation(network, first_variables, inputs) for _ in range(2)]
        evaluations.append(_evaluation(second, second_variables, inputs))
    pairs = [(outputs, second_outputs), *itertools.pairwise(evaluations)]
    if differing or not all(_are_equal(*pair) for pair in pairs):
        problem = f"two builds of {model.text} under one seed differ in "
        problem += first_of(differing, "tensor") if differing else "their outputs"
        advice = "in `build`, random numbers of torch, numpy.random or random, which are seeded, "
        advice += "and in `build` and forward nothing that changes from call to call"
        raise ConfigError(model.location, problem, advice=advice)


class SampleTrial(NamedTuple):
    """Outputs of a model for different random inputs.

    Attributes:
        outputs: The outputs, some of them of large inputs.
        depends_on_batch: Whether outputs for a sample differ in a batch and alone.
    """

    outputs: Tensor
    depends_on_batch: bool


@torch.no_grad()
def try_samples(network: Network, inputs: Inputs) -> SampleTrial | None:
    """Compare a model's outputs for samples in a batch and alone.

    Args:
        network: The model.
        inputs: Its inputs.

    Returns:
        The outputs; None if the model does not take such inputs, or normalises by the batch and is
        therefore scored client by client.
    """
    if network.uses_batch_statistics:
        return None
    generator = torch.Generator().manual_seed(0)
    variables, shown, differs = network.init(0), [], False
    for deviation in SPREAD:
        x = _random_inputs(inputs, deviation, generator)

        def outputs(rows: slice, x: Any = x) -> Tensor:
            samples = map_inputs(lambda array: array[rows], x)
            return network.eval(variables["params"], dict(variables["buffers"]), samples).outputs

        try:
            of_batch = outputs(slice(None))
            of_samples = torch.cat([outputs(slice(row, row + 1)) for row in range(ROWS)])
        except Exception:  # The step of a method shows the error.
            return None
        scale = of_batch.abs().max().clamp(min=1e-6)
        pair = of_batch / scale, of_samples / scale
        differs |= not torch.allclose(*pair, rtol=0, atol=1e-3, equal_nan=True)
        shown.append(of_batch)
    return SampleTrial(torch.cat(shown), differs)


def _random_inputs(inputs: Inputs, deviation: float, generator: torch.Generator) -> Any:
    """Return `ROWS` different inputs: tokens, or normal numbers of a deviation."""

    def create(modality: Modality) -> Tensor:
        shape = (ROWS, *modality.shape)
        if modality.tokens:
            return torch.randint(modality.tokens, shape, generator=generator)
        return deviation * torch.randn(shape, generator=generator)

    return inputs.tree(create)


@torch.no_grad()
def _evaluation(network: Network, variables: Tree, inputs: Inputs) -> Tensor:
    """Return the outputs in evaluation mode."""
    return network.eval(variables["params"], variables["buffers"], _example(inputs)).outputs


def _are_equal(tensor: Tensor, second: Tensor) -> bool:
    return tensor.shape == second.shape and torch.equal(tensor.nan_to_num(), second.nan_to_num())


def are_probabilities(outputs: Tensor) -> bool:
    """Whether outputs, [examples, classes], may be those of a softmax."""
    sums = outputs.double().sum(1)
    is_sum_one = torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-5)
    return is_sum_one and bool((outputs >= 0).all())


def _example(inputs: Inputs) -> Any:
    """Return an input [1, ...] of zeros, or of the last token."""
    return inputs.tree(
        lambda modality: (
            torch.full((1, *modality.shape), modality.tokens - 1)
            if modality.tokens
            else torch.zeros(1, *modality.shape)
        )
    )


def _check_outputs(outputs: tuple[int, ...], classes: int, scenario: Scenario) -> None:
    """Refuse outputs for a sample of which a loss of classes or targets can make nothing.

    Args:
        outputs: The shape of the outputs for a sample.
        classes: Number of classes; 1 if the data set has targets.
        scenario: The scenario.

    Raises:
        FedloomError: For several axes, too few outputs, or too many for a target.
    """
    task, model, dataset = scenario.task, scenario.model.text, scenario.dataset.text
    if DEFAULT not in (task.name, task.model_task):
        return
    if len(outputs) > 1:
        problem = f"the outputs of {model} for a sample are {[*outputs]}"
        raise FedloomError(problem, f"[{classes}]", "torch.nn.Flatten() before the last layer")
    problem = f"{model} has {quantity(outputs[0], 'output')}, but {dataset} has"
    if task.name != DEFAULT and outputs[0] != classes:
        advice = "build the last layer with `classes` outputs, which is 1 for a target"
        raise FedloomError(f"{problem} one target", quantity(classes, "output"), advice)
    if outputs[0] < classes:
        raise FedloomError(f"{problem} {classes} classes", advice="an output for each class")


def _takes_numbers(build_module: Callable[[], nn.Module], tokens: Any) -> bool:
    """Whether a model takes inputs of this shape if they are floating-point numbers."""
    with contextlib.suppress(Exception, SystemExit):
        Network(build_module).probe(tokens.float())
        return True
    return False


def _suitable_models(inputs: Inputs) -> str:
    """Return the models that take such inputs, in words."""
    if inputs.modalities:
        return "a model for such inputs"
    if inputs.tokens:
        return (
            "a model for tokens, such as lstm; or, if the whole numbers are measurements, "
            f"floating-point numbers, such as x.astype('float32'){_grey_images(inputs)}"
        )
    if len(inputs.shape) == 3:
        return (
            "a model for such inputs, and not of too few pixels; images are "
            "[channels, height, width]"
        )
    shape = "images are [channels, height, width]"
    return f"a model for such inputs, such as mlp; {shape}{_grey_images(inputs)}"


def _grey_images(inputs: Inputs) -> str:
    """Return the advice for inputs of two dimensions, which may be grey images; else empty."""
    return "; grey images get their channel by `x[:, None]`" if len(inputs.shape) == 2 else ""


def _text(inputs: Inputs) -> str:
    """Return the inputs in words."""
    return " and ".join(
        (f"{modality.name} " if modality.name else "")
        + f"of shape {modality.shape}"
        + (f", {modality.tokens} different tokens" if modality.tokens else "")
        for modality in inputs.all_modalities
    )
