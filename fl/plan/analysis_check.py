"""Whether a study's analyses can read what its runs will leave, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable

from fl.base.errors import ConfigError, FedloomError
from fl.plan.components import Choice
from fl.plan.rehearsal import Rehearsed
from fl.plan.site import Site


def check(analyses: Iterable[Choice], site: Site) -> None:
    """Refuse (`ConfigError`) an analysis that cannot look at what runs there: one for another task,
    one that passes inputs of one kind through one network, and one that says itself that it cannot.

    Its ``check`` is given the shape of a sample and the number of clients, as far as it is known.
    """
    shape = site.dataset.entry.make(site.dataset.values).shape
    for analysis in analyses:
        site.check(analysis.entry, analysis.at)
        alike = ("weights", "one_modality")
        if site.differ and any(getattr(analysis.entry.target, name, False) for name in alike):
            problem = "takes all clients for alike, but they have several modalities"
            allowed = "a partition without `modalities`"
            raise ConfigError(analysis.at, f"{analysis.entry.name} {problem}", allowed)
        check = getattr(analysis.entry.make(analysis.values), "check", None)
        try:
            if check:
                check(shape, site.clients)
        except FedloomError as error:
            raise ConfigError(analysis.at, f"on {site.dataset.text}: {error}") from None


def check_traces(analyses: Iterable[Choice], rehearsed: Iterable[Rehearsed]) -> None:
    """Refuse (`ConfigError`) an analysis of traces that no entry of the study keeps."""
    kept = [tried.traces for tried in rehearsed]
    for analysis in analyses:
        read = {*getattr(analysis.entry.target, "traces", ())}
        if read and kept and not any(names is None or read <= names for names in kept):
            problem = f"reads {', '.join(sorted(read))} of every round, which no entry here keeps"
            raise ConfigError(analysis.at, problem, "beside an entry of a method that keeps it")
