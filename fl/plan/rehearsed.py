"""A model on a data set, on which methods are tried: only where that has not been done before."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fl.api.training import Training
from fl.base import identity, registry
from fl.base.errors import Where
from fl.data import materials
from fl.plan import specs, tried
from fl.plan.components import Choice, inputs
from fl.plan.points import ADDED, Point
from fl.plan.tried import Tried

if TYPE_CHECKING:
    from fl.plan.trial import Trial


class Rehearsed:
    """A model on what it sees of a data set.

    Attributes:
        model, dataset: As the study has them.
    """

    def __init__(self, model: Choice, dataset: Choice, held: str, tried: Tried) -> None:
        self.model, self.dataset, self._tried = model, dataset, tried
        self._kinds = inputs(dataset, held)

    @property
    def parameters(self) -> int:
        """The number of the model's parameters.

        Raises:
            ConfigError: If it does not take the data set's inputs.
        """
        found = self._tried.get(self._key)
        if found is None:
            found = self.trial.parameters
            self._tried.note(self._key, found)
        return found

    @cached_property
    def trial(self) -> Trial:
        """The model, built; raises as `parameters` does."""
        from fl.plan.trial import Trial

        return Trial(self.model, self.dataset, self._kinds)

    def lacks(self, point: Point, away: int) -> bool:
        """Whether a method has yet to be tried; if so, the model is built first, which raises as
        `parameters` does.

        Args:
            away: How many clients are held out of training.
        """
        return self._tried.get(self._method_key(point, away)) is None and self.trial is not None

    def rehearse(self, point: Point, away: int) -> None:
        """Try a method; raises whatever `fl.plan.rehearsal` does."""
        self.trial.rehearse(_light(point), Training(**point.training), away)
        self._tried.note(self._method_key(point, away))

    @cached_property
    def _key(self) -> str:
        kinds = [asdict(kind) for kind in self._kinds]
        return tried.key(specs.model_code(self.model.spec), self.model.spec, kinds)

    def _method_key(self, point: Point, away: int) -> str:
        """All that decides whether a method can be tried, but for the size of its settings."""
        task, spec = materials.task_entry(self.dataset.spec), _light(point)
        files = [point.entry.file, task.file]
        for key, kind in ADDED.items():
            files += [registry.file(kind, one["name"], Where(kind)) for one in spec[key]]
        code = [identity.code(file) for file in files]
        settings = [tried.like(spec), tried.like_training(point.training)]
        return tried.key(self._key, code, settings, away)


def _light(point: Point) -> dict[str, Any]:
    return {"method": point.spec, "terms": point.terms, "alterations": point.alterations}
