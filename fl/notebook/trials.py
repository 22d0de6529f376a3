"""Trials of a search, asked of Optuna in batches of a fixed size, and pruned between its rungs.

Trials follow from the seed and the values of earlier ones alone.

L. Li, K. Jamieson, G. DeSalvo, A. Rostamizadeh and A. Talwalkar. Hyperband: A Novel Bandit-Based
Approach to Hyperparameter Optimization. JMLR 2018; J. Bergstra, R. Bardenet, Y. Bengio and
B. Kégl. Algorithms for Hyper-Parameter Optimization. NeurIPS 2011; F. Hutter, H. Hoos and
K. Leyton-Brown. An Efficient Approach for Assessing Hyperparameter Importance. ICML 2014.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from fl.base.errors import FedloomError, optional_package
from fl.plan.config import Search
from fl.plan.grids import LOG_UNIFORM
from fl.plan.search import CHOICE, INTEGER, ROUNDS, Distribution, Point, SearchSpace

if TYPE_CHECKING:
    import optuna

COMPLETE, PRUNED, DIVERGED = "complete", "pruned", "diverged"
HALVING = 3
"""Halving keeps the best of each so many trials of a batch."""
FEWEST = 10
"""Complete trials of an entry below which nothing is said of the importance of its keys."""

TrainedPoint = tuple[str, Point]
"""A point with the label of its entry."""


@dataclass(eq=False)
class Trial:
    """A trial.

    Attributes:
        entry: Label of its entry.
        number: Its number among those of the entry, from 0.
        handle: Optuna's trial.
        point: Values of the searched keys.
        rounds: Number of rounds for which it was trained; 0 until then.
        value: Value on validation data after these rounds; the worst if it diverged.
        state: Whether it has all rounds, was pruned, or diverged.
    """

    entry: str
    number: int
    handle: optuna.Trial
    point: Point
    rounds: int = 0
    value: float = math.nan
    state: str = COMPLETE


@dataclass(eq=False)
class Trials:
    """The trials of a search.

    Attributes:
        space: What is searched.
        rising: Whether larger values are better.
        trained: All points that were trained, in their order.
        by_entry: The trials of each entry.
    """

    space: SearchSpace
    rising: bool
    trained: list[TrainedPoint] = field(default_factory=list)
    by_entry: dict[str, list[Trial]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        advice = "python -m pip install optuna scikit-learn, or `make extras` in a clone"
        with optional_package("a search", advice):
            import optuna
            import sklearn  # noqa: F401 # It fits the forests of importances.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        direction = "maximize" if self.rising else "minimize"
        self._studies = {
            label: optuna.create_study(direction=direction, sampler=_sampler(self.space.search))
            for label in self.space.entries
        }
        self.by_entry = {label: [] for label in self._studies}
        self._at_rung: dict[tuple[str, int], list[float]] = {}

    def run(self, evaluate: Callable[[Sequence[TrainedPoint]], list[float]]) -> Iterator[None]:
        """Train all trials; yields after each batch.

        Args:
            evaluate: Trains points, and returns the value of each; NaN if it diverged.
        """
        search = self.space.search
        for first in range(0, search.trials, search.batch):
            numbers = range(first, min(first + search.batch, search.trials))
            batch = [self._ask(label, n) for label in self._studies for n in numbers]
            for rung in range(max(map(len, self.space.rounds.values()))):
                self._train(batch, rung, evaluate)
            yield

    def _ask(self, label: str, number: int) -> Trial:
        searched = self.space.entries[label]
        handle = self._studies[label].ask({d.key: _of_optuna(d) for d in searched})
        trial = Trial(label, number, handle, {d.path: _value(d, handle.params) for d in searched})
        self.by_entry[label].append(trial)
        return trial

    def _train(
        self,
        batch: Iterable[Trial],
        rung: int,
        evaluate: Callable[[Sequence[TrainedPoint]], list[float]],
    ) -> None:
        """Train the trials of a batch that still run up to a rung, and tell Optuna of them."""
        rounds = self.space.rounds
        alive = [t for t in batch if t.state == COMPLETE and rung < len(rounds[t.entry])]
        for trial in alive:
            trial.rounds = rounds[trial.entry][rung]
            rounds_of_rung = {ROUNDS: trial.rounds} if self.space.search.pruner != "none" else {}
            self.trained.append((trial.entry, {**trial.point, **rounds_of_rung}))
        values = evaluate(self.trained)[len(self.trained) - len(alive) :] if alive else []
        for trial, value in zip(alive, values, strict=True):
            if math.isnan(value):
                trial.state, value = DIVERGED, -math.inf if self.rising else math.inf
            trial.value = value
            trial.handle.report(value, trial.rounds)
        for label, study in self._studies.items():
            of_entry = [trial for trial in alive if trial.entry == label]
            is_last = rung == len(rounds[label]) - 1
            promoted = of_entry if is_last else self._promoted(of_entry)
            for trial in of_entry:
                if is_last or trial.state == DIVERGED:
                    study.tell(trial.handle, trial.value)
                elif trial not in promoted:
                    trial.state = PRUNED
                    study.tell(trial.handle, state=_pruned())

    def _promoted(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials of an entry that go on after a rung; those that diverged do not."""
        sign = -1 if self.rising else 1
        costs = [sign * trial.value for trial in trials]
        if self.space.search.pruner == "halving":
            ranked = sorted(trials, key=lambda trial: sign * trial.value)
            return ranked[: math.ceil(len(trials) / HALVING)]
        if not trials:
            return []
        earlier = self._at_rung.setdefault((trials[0].entry, trials[0].rounds), [])
        earlier += costs
        return [t for t, cost in zip(trials, costs, strict=True) if cost <= np.median(earlier)]

    def best(self, label: str) -> Trial:
        """Return the best trial of an entry that has all rounds, the first of equal ones.

        Raises:
            FedloomError: If each of them diverged.
        """
        complete = [trial for trial in self.by_entry[label] if trial.state == COMPLETE]
        if not complete:
            advice = "distributions that end at smaller rates"
            raise FedloomError(f"{label}: no trial has ended without diverging", advice=advice)
        sign = -1 if self.rising else 1
        return min(complete, key=lambda trial: sign * trial.value)

    def importance(self, label: str) -> Mapping[str, float]:
        """Return the share of the variance of values that each key explains, by fANOVA.

        Nothing for a single key, for fewer than `FEWEST` complete trials, and for equal values.
        """
        import optuna

        values = [trial.value for trial in self.by_entry[label] if trial.state == COMPLETE]
        if len(self.space.entries[label]) < 2 or len(values) < FEWEST or len({*values}) < 2:
            return {}
        fanova = optuna.importance.FanovaImportanceEvaluator(seed=self.space.search.seed)
        shares = optuna.importance.get_param_importances(self._studies[label], evaluator=fanova)
        return {key: float(share) for key, share in shares.items()}


def _pruned() -> optuna.trial.TrialState:
    import optuna

    return optuna.trial.TrialState.PRUNED


def _sampler(search: Search) -> optuna.samplers.BaseSampler:
    import optuna

    if search.sampler == "random":
        return optuna.samplers.RandomSampler(seed=search.seed)
    # Trials of a batch that are not told yet count as bad ones, so that a batch spreads.
    return optuna.samplers.TPESampler(seed=search.seed, constant_liar=True)


def _of_optuna(distribution: Distribution) -> optuna.distributions.BaseDistribution:
    """Return a distribution as Optuna has it; what is chosen from is numbered."""
    from optuna import distributions

    if distribution.kind == CHOICE:
        return distributions.CategoricalDistribution([*range(len(distribution.values))])
    if distribution.kind == INTEGER:
        return distributions.IntDistribution(*distribution.values)
    is_log = distribution.kind == LOG_UNIFORM
    return distributions.FloatDistribution(*distribution.values, log=is_log)


def _value(distribution: Distribution, drawn: Mapping[str, Any]) -> Any:
    """Return the value that a trial has of a distribution."""
    number = drawn[distribution.key]
    return (
        distribution.values[number] if distribution.kind == CHOICE else distribution.rounded(number)
    )
