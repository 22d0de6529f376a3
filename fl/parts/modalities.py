"""Models of several kinds of input, of which a client has one: extractors and a classifier."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


class Several(nn.Module):
    """Extractors by modality, each to ``features`` numbers, and a linear classifier after them.

    shared: whether the classifier is one, ``classifier``; else each modality has its own,
    ``<modality>_classifier``. No input goes through all of it: `of` gives what one goes through.
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
        """The model of one modality, whose weights have the names that they have here."""
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
