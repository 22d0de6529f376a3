"""Whether a method uses what a study adds to it: terms of its loss, alterations of features.

Methods made by `fl.api.recipe` do. A loss written by hand may use none of them, and would
train as if nothing had been added; that shows only when the loss is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fl.api.alteration import Alteration
from fl.api.method import BuildContext, MethodTerm
from fl.api.term import AdaptiveTerm, ReferenceTerm, Term
from fl.base.errors import FedloomError
from fl.base.specs import MethodSpec, component_specs
from fl.engine.assembly import MethodComponents


class UseRecorder:
    """Records whether a method uses its terms and alterations.

    Attributes:
        method_components: The method to build instead of the original one; it computes the same.
    """

    def __init__(self, method_components: MethodComponents) -> None:
        self._recorded = {
            key: tuple(map(_Recorded, getattr(method_components, key)))
            for key in ("terms", "alterations")
        }
        self.method_components = replace(method_components, **self._recorded)

    def check(self, spec: MethodSpec) -> None:
        """Raise `FedloomError` for a term or alteration that no loss has used.

        Args:
            spec: What the method is composed of: its ``method``, ``terms`` and ``alterations``.
        """
        name = spec["method"]["name"]
        for key, recorded in self._recorded.items():
            for added, record in zip(component_specs(spec, key), recorded, strict=True):
                if not record.is_used:
                    problem = f"{name}: {key} are set, but its loss does not use {added['name']}"
                    advice = f"no {key}, as the loss of {name} takes none"
                    raise FedloomError(problem, advice=advice)


@dataclass
class _Recorded:
    """A term or an alteration of the registry, which records a call of what it builds."""

    registered: Any
    is_used: bool = False

    def build(self, context: BuildContext) -> Term | AdaptiveTerm | Alteration | MethodTerm:
        built = self.registered.build(context)
        if isinstance(built, AdaptiveTerm):
            return replace(built, term=self._recording(built.term))
        if isinstance(built, ReferenceTerm | MethodTerm):
            return replace(built, term=self._recording(built.term))
        if isinstance(built, Alteration):
            before = built.change_batch and self._recording(built.change_batch)
            return replace(built, apply=self._recording(built.apply), change_batch=before)
        return self._recording(built)

    def _recording(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that computes the same and records its call."""

        def recording(*arguments: Any) -> Any:
            self.is_used = True
            return function(*arguments)

        return recording
