"""A model on the inputs of a data set, built, and the methods that are tried on it.

What it finds out is kept by `fl.plan.tried`, so that this module, which needs torch, is imported
only where something is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from fl.api.method import Setting, declared
from fl.api.network import Network
from fl.api.training import Training
from fl.base import registry
from fl.base.errors import ConfigError, FedloomError
from fl.data import materials
from fl.engine import modal
from fl.plan import specs
from fl.plan.components import Choice, Inputs
from fl.plan.rehearsal import Once, Stage
from fl.pytorch.memory import exhausted


class Trial:
    """A model on what it sees of a data set, of each modality where there are several.

    Raises:
        ConfigError: If the model does not take these inputs.
    """

    def __init__(self, model: Choice, dataset: Choice, kinds: list[Inputs]) -> None:
        self._model, self._dataset = model, dataset
        _, made = registry.entry_of("model", model.spec)
        named = [part for kind in kinds for part in kind.kinds if part.name]
        shapes = {part.name: part.shape for part in named}

        def one(kind: Inputs) -> nn.Module:
            whole = made.build(shapes or kind.shape, kind.classes)
            found: nn.Module = whole.of(kind.name) if kind.name and not kind.parts else whole
            return found

        self._stages = {
            kind.name: (kind, Stage(self._network(kind, partial(one, kind)), kind))
            for kind in kinds
        }
        self._task = materials.task_of(dataset.spec)

    @cached_property
    def parameters(self) -> int:
        """The number of trained parameters; what modalities share counts once."""
        weights: dict[str, torch.Tensor] = {}
        for _, stage in self._stages.values():
            weights |= stage.variables["params"]
        return sum(tensor.numel() for tensor in weights.values())

    def rehearse(self, spec: Mapping[str, Any], training: Training, away: int) -> None:
        """Build a method and compute its losses, see `fl.plan.rehearsal`.

        Args:
            spec: Its ``method``, ``terms`` and ``alterations``.
            away: How many clients are held out of training.
        """
        composed = specs.composed(spec)
        if len(self._stages) > 1:
            apart = not declared(composed.method).modalities
            modal.check(apart, {name: one.network for name, (_, one) in self._stages.items()})
        for kind, stage in self._stages.values():
            setting = Setting(
                *(stage.network, training, kind.classes),
                clients=2,
                shape=kind.shape,
                away=away,
                task=self._task,
                shapes={part.name: part.shape for part in kind.parts},
                tokens=frozenset(part.name for part in kind.parts if part.tokens),
            )
            stage.rehearse(composed, setting, spec)

    def _network(self, inputs: Inputs, make: partial[nn.Module]) -> Network:
        model, dataset = self._model, self._dataset
        try:
            network = Once(make)
            x = _probe(inputs)
            if any(kind.tokens for kind in inputs.kinds):
                with torch.no_grad():
                    variables = network.init(0)
                    network.eval(variables["params"], variables["buffers"], x)
            network.probe(x)
        except FedloomError as error:
            raise ConfigError(model.at, str(error)) from None
        except Exception as error:
            if exhausted(error):
                problem = f"{model.text} on {dataset.text} takes more memory than this machine "
                raise ConfigError(model.at, f"{problem}gives", "a smaller model") from None
            raise ConfigError(
                model.at,
                f"{model.text} does not take the inputs of {dataset.text}, {_told(inputs)} "
                f"({type(error).__name__}: {error})",
                "a model for such inputs",
            ) from None
        return network


def _probe(inputs: Inputs) -> Any:
    """One input: zeros, or for a set of tokens the last of them, which the model must know."""
    return inputs.tree(
        lambda kind: (
            torch.full((1, *kind.shape), kind.tokens - 1)
            if kind.tokens
            else torch.zeros(1, *kind.shape)
        )
    )


def _told(inputs: Inputs) -> str:
    return " and ".join(
        (f"{kind.name} " if kind.name else "")
        + f"of shape {kind.shape}"
        + (f", {kind.tokens} different tokens" if kind.tokens else "")
        for kind in inputs.kinds
    )
