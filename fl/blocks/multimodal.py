"""Models of several modalities: an extractor for each, and a classifier of their features."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fl.api import FedloomError


class MultimodalModel(nn.Module):
    """An extractor for each modality, and a linear classifier after them.

    A sample that has inputs of all modalities goes through the whole model: the mean of the
    extractors' features goes into the classifier. A client that holds one modality has the model
    that `for_modality` returns.

    Args:
        extractors: The extractor of each modality, each with ``features`` outputs.
        features: The number of features.
        classes: The number of classes.
        shared: Whether all have one classifier, ``classifier``; otherwise each modality has its
            own, ``<modality>_classifier``, and no input goes through the whole model.
    """

    def __init__(
        self, extractors: Mapping[str, nn.Module], features: int, classes: int, shared: bool
    ) -> None:
        super().__init__()
        self._shared, self._names = shared, tuple(extractors)
        for name, extractor in extractors.items():
            self.add_module(name, extractor)
        for name in ("classifier",) if shared else map(self._classifier, extractors):
            self.add_module(name, nn.Linear(features, classes))

    def _classifier(self, modality: str) -> str:
        return "classifier" if self._shared else f"{modality}_classifier"

    def for_modality(self, modality: str) -> nn.Module:
        """Return the model of one modality; its weights keep the names that they have here."""
        names = (modality, self._classifier(modality))
        return _SingleModality({name: self.get_submodule(name) for name in names})

    def forward(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return outputs [b, classes] for inputs of all modalities, by name, [b, ...] each."""
        if not self._shared:
            raise FedloomError(
                "classifier: is own, but clients hold all inputs",
                "shared",
                "choose a partition in which clients hold one input each",
            )
        extracted = [self.get_submodule(name)(inputs[name]) for name in self._names]
        outputs: Tensor = self.get_submodule("classifier")(torch.stack(extracted).mean(0))
        return outputs


class _SingleModality(nn.Module):
    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.children():
            x = layer(x)
        return x
