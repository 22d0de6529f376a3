"""Models of several kinds of input, one kind for each client: extractors and a classifier."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class Several(nn.Module):
    """An extractor for each modality, and a linear classifier after them.

    No input goes through the whole model: `of` gives the part that one modality goes through.

    Args:
        extractors: By modality, each with ``features`` outputs.
        shared: Whether all have one classifier, ``classifier``; otherwise each modality has its
            own, ``<modality>_classifier``.
    """

    def __init__(
        self, extractors: Mapping[str, nn.Module], features: int, classes: int, shared: bool
    ) -> None:
        super().__init__()
        self._shared = shared
        for name, extractor in extractors.items():
            self.add_module(name, extractor)
        for name in ("classifier",) if shared else map(self._classifier, extractors):
            self.add_module(name, nn.Linear(features, classes))

    def _classifier(self, modality: str) -> str:
        return "classifier" if self._shared else f"{modality}_classifier"

    def of(self, modality: str) -> nn.Module:
        """The model of one modality; its weights keep the names that they have here."""
        names = (modality, self._classifier(modality))
        return _Chain({name: self.get_submodule(name) for name in names})


class _Chain(nn.Module):
    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.children():
            x = part(x)
        return x
