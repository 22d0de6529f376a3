"""Whether a file of ``results/plan`` is such as `fl.plan.plan` writes.

People copy, edit and truncate them. Each function refuses (`ConfigError`) content with which the
reader of that file could not work. Additional content is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fl.base.errors import Where
from fl.base.fields import Seed
from fl.plan.bundle import Bundle, check_name
from fl.plan.config import Execution, Settings
from fl.store.run_check import check_named, shaped


@dataclass(frozen=True)
class _Summary:
    key: str
    settings: Settings
    watched: dict[str, str]
    runs: list[str]
    studies: dict[str, dict[str, Any]]
    bundles: dict[str, dict[str, Any]]
    analyses: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class _StudySummary:
    hash: str
    bundles: list[str]
    partitions: list[str]
    analyses: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _AnalysisSummary:
    bundles: list[str]


@dataclass(frozen=True)
class _BundleSummary:
    runs: list[str]
    keep_weights: list[str]
    dataset: str
    partition: str
    after: list[str]


@dataclass(frozen=True)
class _Study:
    study: str
    title: str
    question: str
    metric: str
    baseline: str | None
    hash: str
    runs: list[dict[str, Any]]
    published: list[dict[str, Any]]
    test: Literal["own", "global", "reweighted"] = "own"
    scored: Literal["last", "best"] = "last"
    analyses: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class _StudyAnalysis:
    analysis: str
    text: str
    title: str


@dataclass(frozen=True)
class _Analysis:
    analysis: str
    spec: dict[str, Any]
    code: str
    study: str
    metric: str
    runs: list[dict[str, Any]]
    bundles: list[str]
    execution: Execution


@dataclass(frozen=True)
class _StudyRun:
    run: str
    method: str
    title: str
    point: dict[str, Any]
    dataset: str
    partition: str
    partition_id: str
    model: str
    seed: Seed
    bundle: str


@dataclass(frozen=True)
class _Partition:
    dataset: str
    spec: dict[str, Any]
    scheme: dict[str, Any]
    text: str


def check_summary(given: Any, where: Where) -> None:
    """``plan.json``: the settings, and what studies and bundles there are."""
    found = shaped(_Summary, given, where)
    for kind, shape in (
        ("studies", _StudySummary),
        ("bundles", _BundleSummary),
        ("analyses", _AnalysisSummary),
    ):
        for name, one in found[kind].items():
            shaped(shape, one, where / kind / name)
    members = (run for bundle in found["bundles"].values() for run in bundle["runs"])
    for run in (*found["runs"], *members):
        check_name(run, where / "runs")


def check_study(given: Any, where: Where) -> None:
    """``studies/<name>.json``: a study's runs, and what is published beside them."""
    found = shaped(_Study, given, where)
    _check_runs(found["runs"], where / "runs", ("run",))
    for i, one in enumerate(found["analyses"]):
        at = where / "analyses" / i
        check_name(shaped(_StudyAnalysis, one, at)["analysis"], at / "analysis")


def check_analysis(given: Any, where: Where) -> None:
    """``analyses/<id>.json``: an analysis' spec, and the runs that it reads."""
    found = shaped(_Analysis, given, where)
    check_named(found["spec"], where / "spec")
    check_name(found["analysis"], where / "analysis")
    _check_runs(found["runs"], where / "runs", ("run", "bundle", "partition_id"))


def check_dataset(given: Any, where: Where) -> None:
    """``datasets/<id>.json``: the data set's spec."""
    check_named(given, where)


def check_partition(given: Any, where: Where) -> None:
    """``partitions/<id>.json``: a scheme on a data set."""
    found = shaped(_Partition, given, where)
    for key in ("spec", "scheme"):
        check_named(found[key], where / key)


KINDS: Mapping[str, Callable[[Any, Where], Any]] = {
    "bundles": Bundle.of,
    "studies": check_study,
    "datasets": check_dataset,
    "partitions": check_partition,
    "analyses": check_analysis,
}
"""By the folder in ``results/plan``."""


def _check_runs(given: list[dict[str, Any]], where: Where, names: tuple[str, ...]) -> None:
    """The runs of a study, or those that an analysis reads; names: keys that are file names."""
    for i, one in enumerate(given):
        run = shaped(_StudyRun, one, where / i)
        for key in names:
            check_name(run[key], where / i / key)
