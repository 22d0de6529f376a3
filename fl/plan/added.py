"""Whether a method uses what a study adds to it: terms of its loss, alterations of features.

Methods made by `fl.api.recipe` do. A loss written by hand may use none of them, and would
train as if nothing had been added; that shows only when the loss is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fl.api.alteration import Alteration
from fl.api.method import Attached, BuildContext
from fl.api.term import Adaptive, Compared, Term
from fl.base.errors import FedloomError
from fl.engine.assembly import Composed


class Added:
    """A method whose terms and alterations record that they were used.

    Attributes:
        composed: What to build instead of the given method; it computes the same.
    """

    def __init__(self, composed: Composed) -> None:
        self._noting = {
            kind: tuple(map(_Noting, getattr(composed, kind))) for kind in ("terms", "alterations")
        }
        self.composed = replace(composed, **self._noting)

    def check(self, spec: Mapping[str, Any]) -> None:
        """Refuse (`FedloomError`) what no loss has used by now.

        Args:
            spec: What the method is composed of: its ``method``, ``terms`` and ``alterations``.
        """
        name = spec["method"]["name"]
        for kind, noting in self._noting.items():
            for added, noted in zip(spec.get(kind, ()), noting, strict=True):
                if not noted.asked:
                    problem = f"{kind} are set, but its loss does not ask for {added['name']}"
                    raise FedloomError(f"{name}: {problem}. Allowed: none, as its loss is its own")


@dataclass
class _Noting:
    """A term or an alteration as the registry has it; asked: whether what it builds was called."""

    registered: Any
    asked: bool = False

    def build(self, context: BuildContext) -> Term | Adaptive | Alteration | Attached:
        built = self.registered.build(context)
        if isinstance(built, Adaptive):
            return replace(built, term=self._noted(built.term))
        if isinstance(built, Compared | Attached):
            return replace(built, term=self._noted(built.term))
        if isinstance(built, Alteration):
            before = built.before and self._noted(built.before)
            return replace(built, apply=self._noted(built.apply), before=before)
        return self._noted(built)

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            self.asked = True
            return function(*given)

        return noted
