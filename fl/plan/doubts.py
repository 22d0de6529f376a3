"""Doubts about stored runs of other code: what may have changed their numbers, and what has.

The certified versions (`fl.plan.certification`) know some changes: a version that rose, and hashes
of before. Of other code nobody has compared the numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from fl.base import identity
from fl.data import partitioning, preparation
from fl.plan import certification
from fl.plan.certification import Doubt
from fl.plan.run_spec import SPEC_ERRORS, RunSpec, model_code, with_defaults
from fl.store.run_record import is_name
from fl.store.store import Store

UNKNOWN_DATA = Doubt("data set or partition: code that was never certified", False)


@dataclass
class Doubts:
    """Doubts about the runs of a store.

    Attributes:
        store: The store.
        of_data: Doubts about data, by what they follow from.
        by_run: Doubts by run.
    """

    store: Store
    of_data: dict[str, list[Doubt]] = field(default_factory=dict)
    by_run: dict[str, list[Doubt]] = field(default_factory=dict)

    def of_run(self, run: str) -> list[Doubt]:
        """Return what may have changed the numbers of a run or of the run that it starts from."""
        if run not in self.by_run:
            self.by_run[run] = []  # A damaged record may start from itself.
            try:
                record = self.store.record(run)
                doubts = [*self._of_code(record["code"], RunSpec(with_defaults(record["spec"])))]
            except SPEC_ERRORS as error:
                self.by_run[run] = [Doubt(f"its record: {error}", False)]
                return self.by_run[run]
            start = record.get("start")
            if isinstance(start, str) and is_name(start) and self.store.has(start):
                doubts += [
                    Doubt(f"the run that it starts from: {text}", is_change)
                    for text, is_change in self.of_run(start)
                    if (text, is_change) not in doubts
                ]
            self.by_run[run] = list(dict.fromkeys(doubts))
        return self.by_run[run]

    def _of_code(self, code: dict[str, Any], run_spec: RunSpec) -> Iterator[Doubt]:
        roots = all_roots(run_spec)
        for key, root in (("core", identity.CORE), *run_spec.roots.items()):
            name = code.get(key, "")
            if key == "model":
                model = run_spec.spec["model"]
                # With weights of the user's own, the code of a model holds their content.
                certified = {
                    model_code(model, {root: known}.__getitem__): known
                    for known in certification.certified_names(root)
                }
                name = certified.get(name, name)
            if found := certification.find_doubt(root, name, roots):
                yield found
        versions = identity.option_versions(run_spec.spec)
        for option in sorted(identity.versioned_options(run_spec.spec)):
            # An option has the version 1 until its numbers change, and is then named.
            version, stored = versions.get(option, "1"), code.get(option)
            if stored is None and certification.is_version(code.get("core", "")):
                stored = "1"
            if stored not in (None, version):
                yield Doubt(f"{option}: version {stored}, now {version}", True)
        key = identity.digest([code.get("dataset"), code.get("partition"), sorted(roots)])
        if key not in self.of_data:
            self.of_data[key] = [*_of_data(code, run_spec, roots)]
        yield from self.of_data[key]


def all_roots(run_spec: RunSpec) -> set[str]:
    """Return all roots and options of a run, of which some may have risen."""
    roots = {*run_spec.roots.values(), *run_spec.data_roots, identity.CORE}
    return roots | {*identity.versioned_options(run_spec.spec)}


def _of_data(code: dict[str, Any], run_spec: RunSpec, roots: set[str]) -> Iterator[Doubt]:
    """Yield doubts about data set and partition, whose ids hold the names of their code."""
    spec, data_roots = run_spec.spec, run_spec.data_roots
    names = [certification.certified_names(root) for root in data_roots]
    for combination in itertools.product(*names):
        code_of = dict(zip(data_roots, combination, strict=True)).__getitem__
        if preparation.dataset_id(spec["dataset"], code_of) == code.get(
            "dataset"
        ) and partitioning.partition_id(spec["partition"], code["dataset"], code_of) == code.get(
            "partition"
        ):
            for root, name in zip(data_roots, combination, strict=True):
                if found := certification.find_doubt(root, name, roots):
                    yield found
            return
    yield UNKNOWN_DATA
