"""A model takes one input of a data set before anything is trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fl.api.network import Network
from fl.api.task import DEFAULT
from fl.base.errors import ConfigError, FedloomError
from fl.plan.components import Inputs
from fl.plan.scenario import Scenario
from fl.pytorch.lora import LoraLinear, check_head
from fl.pytorch.memory import is_out_of_memory


def probed_network(
    scenario: Scenario, inputs: Inputs, build_module: Callable[[], nn.Module]
) -> Network:
    """Return the model after a pass of one input: zeros, or the last token, which it must know."""
    model, dataset = scenario.model, scenario.dataset
    try:
        x = inputs.tree(
            lambda modality: (
                torch.full((1, *modality.shape), modality.tokens - 1)
                if modality.tokens
                else torch.zeros(1, *modality.shape)
            )
        )
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        problem = f"a sample of {dataset.text} takes more memory than this machine gives"
        raise ConfigError(dataset.location, problem, advice="smaller samples") from None
    try:
        network = Network(build_module)
        if any(modality.tokens for modality in inputs.all_modalities):
            variables = network.init(0)
            with torch.no_grad():
                network.eval(variables["params"], variables["buffers"], x)
        outputs = network.probe(x)
        if scenario.task.name == DEFAULT and outputs[0] < inputs.classes:
            problem = f"{model.text} has {outputs[0]} outputs, but {dataset.text} has "
            problem += f"{inputs.classes} classes"
            raise FedloomError(problem, advice="an output for each class")
        check_head(network.layers(LoraLinear), network.head_names)
    except FedloomError as error:
        raise ConfigError(model.location, str(error)) from None
    except (Exception, SystemExit) as error:
        if is_out_of_memory(error):
            problem = f"{model.text} on {dataset.text} takes more memory than this machine gives"
            raise ConfigError(model.location, problem, advice="a smaller model") from None
        problem = f"{model.text} does not take the inputs of {dataset.text}, {_text(inputs)}"
        # PyTorch says of tokens only that types of matrices differ, and of a shape that is
        # unpacked only how long it is.
        if inputs.tokens and _takes_numbers(build_module, x):
            problem += ", which are whole numbers, but numbers with fractions"
        elif "values to unpack" not in str(error):
            problem += f" ({type(error).__name__}: {error})"
        raise ConfigError(model.location, problem, advice=_suitable_models(inputs)) from None
    return network


def _takes_numbers(build_module: Callable[[], nn.Module], tokens: Any) -> bool:
    """Whether a model takes inputs of this shape if they are floating-point numbers."""
    with contextlib.suppress(Exception, SystemExit):
        Network(build_module).probe(tokens.float())
        return True
    return False


def _suitable_models(inputs: Inputs) -> str:
    """The models that take such inputs, in words."""
    if inputs.modalities:
        return "a model for such inputs"
    if inputs.tokens:
        return (
            "a model for tokens, such as lstm; or, if the whole numbers are measurements, "
            "floating-point numbers, such as x.astype('float32')"
        )
    if len(inputs.shape) == 3:
        return (
            "a model for such inputs, and not of too few pixels; images are "
            "[channels, height, width]"
        )
    return "a model for such inputs, such as mlp; images are [channels, height, width]"


def _text(inputs: Inputs) -> str:
    """The inputs in words."""
    return " and ".join(
        (f"{modality.name} " if modality.name else "")
        + f"of shape {modality.shape}"
        + (f", {modality.tokens} different tokens" if modality.tokens else "")
        for modality in inputs.all_modalities
    )
