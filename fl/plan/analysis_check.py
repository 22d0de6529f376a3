"""Whether a study's analyses can read what its runs will leave, before anything runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fl.base.errors import ConfigError, FedloomError, unknown
from fl.plan.components import Choice
from fl.plan.modal_check import ALL, DIFFER, Held, check_inputs
from fl.plan.rehearsal import Rehearsed


def check_named(analyses: Iterable[Choice], entries: Collection[str]) -> None:
    """Refuse (`ConfigError`) an analysis whose key ``methods`` names what is no entry."""
    for analysis in analyses:
        for i, label in enumerate(analysis.values.get("methods", ())):
            if label not in entries:
                raise unknown(analysis.at / "methods" / i, "entry", label, entries)


def check_held(analyses: Iterable[Choice], holding: Held, dataset: Choice, model: Choice) -> None:
    """Refuse (`ConfigError`) an analysis that passes inputs of one kind through one network."""
    for analysis in analyses:
        if holding in ALL:
            check_inputs(analysis.entry, dataset, model, analysis.at)
        alike = ("weights", "one_modality")
        if holding in DIFFER and any(getattr(analysis.entry.target, name, False) for name in alike):
            problem = f"{analysis.entry.name} takes all clients for alike, "
            problem += "but they have several modalities"
            raise ConfigError(analysis.at, problem, "a partition without `modalities`")


def check_data(analyses: Iterable[Choice], dataset: Choice, clients: int | None) -> None:
    """Refuse (`ConfigError`) an analysis that says itself that it cannot look at such data.

    Its ``check`` is given the shape of a sample and the number of clients, as far as it is known.
    """
    shape = dataset.entry.make(dataset.values).shape
    for analysis in analyses:
        check = getattr(analysis.entry.make(analysis.values), "check", None)
        try:
            if check:
                check(shape, clients)
        except FedloomError as error:
            raise ConfigError(analysis.at, f"on {dataset.text}: {error}") from None


def check_traces(analyses: Iterable[Choice], rehearsed: Iterable[Rehearsed]) -> None:
    """Refuse (`ConfigError`) an analysis of traces that no entry of the study keeps."""
    kept = [tried.traces for tried in rehearsed]
    for analysis in analyses:
        read = {*getattr(analysis.entry.target, "traces", ())}
        if read and kept and not any(names is None or read <= names for names in kept):
            problem = f"reads {', '.join(sorted(read))} of every round, which no entry here keeps"
            raise ConfigError(analysis.at, problem, "beside an entry of a method that keeps it")
