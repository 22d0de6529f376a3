"""The plan of a study: its runs, its settings, and what its report says beside numbers.

A *setting* is a data set, a partition and a model without the seeds of draws: methods are compared
in it. A *draw* is one seed of the data set or the partition. Several draws of a setting are
replicates of one comparison.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from fl.base.dataclass_json import as_json
from fl.base.hashes import digest
from fl.plan.analyses import PlannedAnalysis
from fl.plan.bundle import Run


@dataclass(frozen=True)
class Setting:
    """A data set, a partition and a model without the seeds of draws.

    Attributes:
        id: Hash of the values of the three, without the seeds of data set and partition.
        title: Name in reports: the user's titles, else names with the keys that the study sets.
        short_title: The title without what all settings of the study share (`StudyPlan.shared`).
        dataset: The data set as the study writes it, without the seeds of draws.
        partition: The partition, likewise.
        model: The model as the study writes it.
    """

    id: str
    title: str
    short_title: str
    dataset: str
    partition: str
    model: str


@dataclass(frozen=True)
class EntrySummary:
    """A method entry as reports describe it.

    Attributes:
        method: Name of the method.
        start: Label of the entry whose model or images it uses.
        training: Values of each training key over the points of the entry's grid.
        values: Likewise of the hyper-parameters, those of terms and others as ``mk-mmd.mu``.
    """

    method: str
    start: str | None
    training: dict[str, list[Any]]
    values: dict[str, list[Any]]


class ComparedCell(TypedDict, total=False):
    """A published cell beside which a report sets a mean of the study; absent keys do not apply.

    ``source``, ``table``, ``row``, ``column``, ``value``, ``sd`` and ``note`` are the published
    ones. ``method`` is the entry, ``setting`` the text of data set or partition. The other keys are
    as in `fl.plan.config.Cells`; ``domain``, ``modality`` (with its number in partitions) and
    ``unseen`` narrow the clients.
    """

    source: str
    table: str
    row: str
    column: str
    value: float
    sd: float | None
    note: str
    method: str
    setting: str
    model: str
    metric: str
    round: int
    unit: float
    domain: str
    modality: str
    modality_number: int
    unseen: bool


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study. What is not described here is as in `fl.plan.config.Study`.

    Attributes:
        study: The study's name.
        settings: The study's settings, in its order.
        shared: What all settings have in common, in words; empty if there is only one setting.
        published: Published cells to compare with.
        analyses: Analyses of its runs.
        titles: The user's titles of data sets, partitions and models, by kind and text.
        models: Number of trained weights, by the texts of model and data set.
        heads: Layers that make the outputs, by the text of the model; only of models with a head.
        runs: Its runs.
        seeds: Seeds of training.
        entries: Method entries by label.
        names: Names of all components that the study uses, by kind of the registry.
        notes: What the study's author should know of it, beside errors.
        hash: Hash of all of this and of the code that shows it.
    """

    study: str
    title: str
    question: str
    departures: list[str] | None
    metric: str
    test: str
    scored: str
    metrics: list[str]
    baseline: str | None
    contrasts: dict[str, str]
    runs: list[Run]
    settings: list[Setting]
    shared: str
    published: list[ComparedCell]
    analyses: list[PlannedAnalysis]
    titles: dict[str, dict[str, str]]
    models: dict[str, dict[str, int]]
    heads: dict[str, str]
    seeds: list[int]
    entries: dict[str, EntrySummary]
    names: dict[str, list[str]]
    ours: str | None = None
    choice: str = "any"
    goal: float | None = None
    notes: list[str] = field(default_factory=list)
    hash: str = ""

    @property
    def bundles(self) -> list[str]:
        """The ids of the bundles that train the study's runs."""
        return sorted({run.bundle for run in self.runs})

    def setting_title(self, dataset: str, partition: str, model: str) -> str:
        """Return a setting, or a draw of one, in one line and with the user's titles.

        Args:
            dataset: The data set as the study writes it, of a setting without the seeds of draws.
            partition: The partition, likewise.
            model: The model.
        """
        for setting in self.settings:
            if (setting.dataset, setting.partition, setting.model) == (dataset, partition, model):
                return setting.title.replace(" · ", " / ")
        texts = {"dataset": dataset, "partition": partition, "model": model}
        return " / ".join(self.titles.get(kind, {}).get(text, text) for kind, text in texts.items())

    def sealed(self, *presentation: Any) -> StudyPlan:
        """Return the plan with its hash, which covers ``presentation`` too."""
        return replace(self, hash=digest([as_json(self), *presentation]))


FEWEST_UNITS = 6
"""Fewest draws or seeds whose exact sign-flip test can reach 5 %: it gives 2^(1 - n) at least."""


def few_units_note(plan: StudyPlan) -> str:
    """Return a sentence if a study has too few draws or seeds for any claim; empty if not.

    One seed is enough to try something, so that nothing is said of it.
    """
    draws: dict[str, set[str]] = {}
    for run in plan.runs:
        draws.setdefault(run.setting, set()).add(run.draw)
    n_draws = max(map(len, draws.values()), default=0)
    units, word, key = n_draws, "draws", "`seed:` of the partition"
    if n_draws <= 1:
        units, word, key = len(plan.seeds), "seeds", "`seeds:`"
    if len({run.method for run in plan.runs}) < 2 or not 1 < units < FEWEST_UNITS:
        return ""
    return (
        f"{units} {word} are too few for a claim that one method is better: the smallest "
        f"possible p-value is {2.0 ** (1 - units):.3g}. Try: at least {FEWEST_UNITS} in {key}"
    )
