"""The method entries of a study: their points, and what each of them starts from."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fl.api.task import DEFAULT, Task
from fl.api.training import WEIGHTS, Training
from fl.base import faults, fields, registry
from fl.base.declaration import declared
from fl.base.errors import ConfigError, FedloomError, Where, unknown
from fl.base.fields import Count
from fl.base.registry import ADDED, Entry
from fl.base.schema import SERVER
from fl.plan import config, modal_check, partition_fit, task_check
from fl.plan.components import Choice
from fl.plan.config import Execution, Study
from fl.plan.elsewhere import Elsewhere, Site, check_start
from fl.plan.points import Point, points
from fl.plan.rehearsal import Rehearsal, Rehearsed, TooFew


class Entries:
    """The method entries of a study, checked against each other (`ConfigError`).

    Attributes:
        points: By label, every point of an entry's grid.
        executions: By label, how an entry is computed.
        execution: How an entry is computed that says nothing else.
    """

    def __init__(
        self,
        folder: Path,
        study: Study,
        where: Where,
        execution: Execution,
        settle: Callable[[Choice], Choice],
    ) -> None:
        self._folder, self._where = folder, where
        self._given: dict[str, Mapping[str, Any]] = {}
        for label, given in study.methods.items():
            at = where / "methods" / label
            if not re.fullmatch(r"[A-Za-z0-9][\w.+-]*", label):
                raise ConfigError(at, f"the name {label!r}", "letters, digits and . _ + -")
            self._given[label] = fields.mapping(given, at)
        self.points: dict[str, list[Point]] = {
            label: list(points(folder, study, where, label, given))
            for label, given in self._given.items()
        }
        if study.baseline is not None and study.baseline not in self._given:
            raise unknown(where / "baseline", "entry", study.baseline, self._given)
        self._study = study
        for label in self._given:
            self._check_ancestors(label)
            self._check_precision(label)
        self._check_titles()
        for label in study.best.rows if study.best else ():
            if label not in self._given:
                raise unknown(where / "best" / "rows" / label, "entry", label, self._given)
        self.execution = config.execution(execution, study.execution, where / "execution")
        self.executions = {label: self._execution(label) for label in self._given}
        self._elsewhere: dict[str, Elsewhere] = {
            label: Elsewhere.of(given, where / "methods" / label, settle)
            for label, given in self._given.items()
        }

    def site(self, label: str, study: Site) -> Site:
        """Where an entry runs while the study is somewhere."""
        return self._elsewhere[label].site(study)

    def sites(self, study: Site, model: Choice) -> Iterator[tuple[Site, list[str]]]:
        """The study's site and those of entries with one of their own, each with its entries.

        Raises:
            ConfigError: For an entry that starts from a model which does not fit its data, or
                trains on images of other clients.
        """
        at = self._where / "methods"
        yield study, [label for label in self.points if not self._elsewhere[label]]
        for label in self.points:
            here, start, on = self.site(label, study), self.start(label), self.train_on(label)
            if start is not None:
                before = self.site(start, study)
                check_start(start, before, here, model, at / label / "start")
            if isinstance(on, str) and self.site(on, study) != here:
                problem = f"{on!r} makes images for other clients than those of {here.scheme.text}"
                allowed = "an entry of the same data set and partition"
                raise ConfigError(at / label / "train_on", problem, allowed)
            if self._elsewhere[label]:
                yield here, [label]

    def check(
        self,
        labels: Iterable[str],
        dataset: Choice,
        model: Choice,
        scheme: Choice,
        task: Task,
        holding: modal_check.Held,
    ) -> None:
        """Refuse (`ConfigError`) entries that cannot work on this data set and partition.

        That is a grid, or a method that learns by validation data, without such data, a batch
        larger than the data set, and what is made for another task.
        """
        size = dataset.entry.make(dataset.values).size
        for label in labels:
            points = self.points[label]
            at = self._where / "methods" / label
            if len(points) > 1 and not partition_fit.holds(scheme.spec, "val"):
                problem = f"is a grid, but {scheme.text} has no validation samples to choose by"
                raise ConfigError(at, problem, "one point, or a partition with val > 0")
            if self._study.scored == "best" and not partition_fit.holds(scheme.spec, "val"):
                problem = f"is best, but {scheme.text} has no validation samples to tell by"
                raise ConfigError(self._where / "scored", problem, "last, or a val > 0")
            waits = any(point.training["early_stopping"] for point in points)
            if waits and not partition_fit.holds(scheme.spec, "val"):
                problem = f"is set, but {scheme.text} has no validation samples to stop by"
                raise self._wrong(label, "early_stopping", problem, "null, or a val > 0")
            target = points[0].entry.target
            if declared(target).validates and not partition_fit.holds(scheme.spec, "val"):
                problem = f"learns by validation samples, of which {scheme.text} has none"
                raise ConfigError(at, problem, "a partition with val > 0")
            if declared(target).server_data and not partition_fit.holds(scheme.spec, SERVER):
                problem = f"trains on the server, which holds no samples in {scheme.text}"
                raise ConfigError(at, problem, "a partition with server > 0")
            self._check_task(label, task, dataset)
            modal_check.check_trained_on(self.train_on(label), holding, at / "train_on")
            if holding in modal_check.ALL:
                modal_check.check_inputs(points[0].entry, dataset, model, at)
            for point in points:
                self._check_targets(label, point.training, task, dataset)
                self._check_batch(label, point.training["batch_size"], size, dataset)
                self._check_round(label, point, scheme, dataset)

    def rehearse(
        self, labels: Iterable[str], rehearsal: Rehearsal, dataset: Choice, model: Choice, away: int
    ) -> dict[int, Rehearsed]:
        """Refuse (`ConfigError`) entries that cannot be built for a model or cannot train it.

        Args:
            away: How many clients are held out of training.

        Returns:
            What was found out of each point, by its identity (`id`).
        """
        rehearsed = {}
        for label in labels:
            for point in self.points[label]:
                with self._telling(label, point, dataset, model):
                    rehearsed[id(point)] = rehearsal.try_point(point, away)
        return rehearsed

    @contextmanager
    def _telling(self, label: str, point: Point, dataset: Choice, model: Choice) -> Iterator[None]:
        """What a rehearsal raises, as a `ConfigError`."""
        at = self._where / "methods" / label
        try:
            yield
        except TooFew as error:
            size = point.training["batch_size"]
            problem = f"is {size}, too few for {label} with {model.text} on {dataset.text} "
            raise self._wrong(
                label, "batch_size", f"{problem}({error})", f"{error.least} or more"
            ) from None
        except FedloomError as error:
            raise ConfigError(at, f"with {model.text}: {error}") from None
        except (Exception, SystemExit) as error:
            problem = f"{point.entry.name} cannot train {model.text} on {dataset.text}"
            allowed = "a method, terms and training keys that fit this model and its inputs"
            told = f"{problem} ({faults.told(error)})"
            raise ConfigError(at, told, "" if faults.own_line(error) else allowed) from None

    def _check_task(self, label: str, task: Task, dataset: Choice) -> None:
        """Whether a method, and what is added to it, goes with the labels of a data set."""
        at, points = self._where / "methods" / label, self.points[label]
        task_check.check(points[0].entry, task, dataset, at)
        for key, kind in ADDED.items():
            for spec in getattr(points[0], key):
                there = at / key / spec["name"]
                task_check.check(registry.find(kind, spec["name"], there), task, dataset, there)

    def _check_batch(self, label: str, batch: int, size: int | None, dataset: Choice) -> None:
        """Whether a batch is of no more samples than there are; the default one is, of any set."""
        if size is not None and batch > max(size, Training.batch_size):
            problem = f"is {batch}, more than the {size} samples of {dataset.text}"
            raise self._wrong(label, "batch_size", problem, f"1 to {size}")

    def _check_round(self, label: str, point: Point, scheme: Choice, dataset: Choice) -> None:
        """Whether as many clients take part in a round as an aggregation needs, as far as keys
        tell.
        """
        clients = partition_fit.clients_of(scheme.spec, dataset.spec)
        if clients is None or partition_fit.holds_out(scheme.spec):
            return
        taking = max(1, round(point.training["participation"] * clients))
        for spec in point.aggregation:
            least = getattr(registry.entry_of("aggregation", spec)[1], "least", 1)
            if taking < least:
                problem = (
                    f"needs {least} clients in a round with these keys, and {taking} take part"
                )
                at = self._where / "methods" / label / "aggregation" / spec["name"]
                raise ConfigError(at, problem, "fewer attackers, or more clients in a round")

    def _check_targets(
        self, label: str, training: Mapping[str, Any], task: Task, dataset: Choice
    ) -> None:
        """Whether there is cross-entropy, where its targets and weights are set."""
        for key, plain in (("label_smoothing", 0.0), ("class_weights", "none")):
            if training[key] != plain and task.name != DEFAULT:
                problem = f"is {training[key]!r}, but {dataset.text} has {task.given}"
                allowed = f"{plain}, or a data set with class labels"
                raise self._wrong(label, key, problem, allowed)

    def _wrong(self, label: str, key: str, problem: str, allowed: str) -> ConfigError:
        """The error for a training key of an entry, at the layer that set it."""
        name = self._entry(label).name
        defaults, defaults_at = config.method_defaults(self._folder, name)
        at = self._where / "methods" / label / key
        if key not in self._given[label] and key in defaults:
            at = defaults_at / key
        elif key not in self._given[label] and key in self._study.training:
            at = self._where / "training" / key
        return ConfigError(at, problem, allowed)

    def start(self, label: str) -> str | None:
        """The entry whose model this one starts from."""
        at, given, entry = self._where / "methods" / label, self._given[label], self._entry(label)
        start, wanted = given.get("start"), getattr(entry.target, "starts", False)
        if not wanted and start is not None:
            starting = [e.name for e in registry.entries("method") if declared(e.target).starts]
            problem = f"is {start!r}, but {entry.name} does not start from a stored model"
            raise ConfigError(
                at / "start", problem, f"no start; or as method {', '.join(starting)}"
            )
        if wanted and start is None:
            others = sorted(set(self._given) - {label})
            allowed = ", ".join(others) or "another entry, such as fedavg, which is not there yet"
            raise ConfigError(at / "start", "is missing", allowed)
        if wanted and (not isinstance(start, str) or start not in self._given):
            raise unknown(at / "start", "entry of this study", start, set(self._given) - {label})
        return start

    def train_on(self, label: str) -> str | int | None:
        """What an entry trains on instead of all of the clients' samples.

        Returns:
            The label of the entry whose images it trains on, or a number of real samples per class.
        """
        at, given = self._where / "methods" / label / "train_on", self._given[label]
        asked = given.get("train_on")
        if asked is None or (isinstance(asked, int) and not isinstance(asked, bool)):
            return None if asked is None else int(fields.value(Count, asked, at))
        makers = [name for name in self._given if self.distils(name)]
        if not isinstance(asked, str) or asked not in makers or asked == label:
            problem = f"is {asked!r}"
            allowed = "a number of images of every class, or an entry of this study that makes "
            raise ConfigError(at, problem, f"{allowed}virtual ones: {', '.join(makers) or 'none'}")
        if self.start(label) is not None:
            raise ConfigError(at, "stands beside start", "one of both")
        if self._given[asked].get("train_on") is not None:
            raise ConfigError(
                at, f"{asked!r} does not train on all samples itself", "one that does"
            )
        return asked

    def distils(self, label: str) -> bool:
        """Whether an entry makes virtual images, once for all seeds."""
        return declared(self._entry(label).target).distils

    def _entry(self, label: str) -> Entry:
        """The registry's entry for the method of an entry."""
        return self.points[label][0].entry

    @property
    def size(self) -> int:
        """The number of points of all entries, each for every point of what it starts from."""
        return sum(map(self._size, self._given))

    def _size(self, label: str) -> int:
        before, on = self.start(label), self.train_on(label)
        before = on if isinstance(on, str) else before
        return len(self.points[label]) * (1 if before is None else self._size(before))

    def title(self, label: str) -> str:
        """What tables call an entry."""
        given = self._given[label]
        if "title" in given:
            return str(fields.value(str, given["title"], self._where / "methods" / label / "title"))
        target = self._entry(label).target
        name = str(getattr(target, "title", target.__name__))
        return name if given.get("method", label) == label else label

    def _check_titles(self) -> None:
        named: dict[str, str] = {}
        for label in self._given:
            title = self.title(label)
            if named.setdefault(title, label) != label:
                at = self._where / "methods" / label / "title"
                problem = f"is {title!r}, what tables call {named[title]} already"
                raise ConfigError(at, problem, "a title of its own")

    def _check_ancestors(self, label: str) -> None:
        seen = [label]
        while (start := self.start(seen[-1])) is not None:
            at = self._where / "methods" / seen[-1] / "start"
            if start in seen:
                raise ConfigError(at, f"goes round in a circle: {' <- '.join([*seen, start])}")
            entry = self._entry(start)
            if "global" not in entry.target.stages:
                raise ConfigError(at, f"{start!r} ({entry.name}) has no shared model to start from")
            wanted = declared(self._entry(seen[-1]).target).goes_on
            if wanted and entry.name not in wanted:
                problem = f"{start!r} is {entry.name}, whose result says nothing of how to go on"
                raise ConfigError(at, problem, f"an entry of {' or '.join(wanted)}")
            seen.append(start)

    def _check_precision(self, label: str) -> None:
        """Check that an entry has the precision of what it starts from, or of the images it trains
        on.
        """
        start, on = self.start(label), self.train_on(label)
        start = on if isinstance(on, str) else start
        if start is None:
            return
        precisions, stored = (
            {point.training["precision"] for point in self.points[name]} for name in (label, start)
        )
        for mine, other in itertools.product(sorted(precisions), sorted(stored)):
            if WEIGHTS[mine] != WEIGHTS[other]:
                problem = f"is {mine}, but what comes of {start!r}, where it starts, is {other}"
                allowed = [name for name, kind in WEIGHTS.items() if kind == WEIGHTS[other]]
                raise self._wrong(label, "precision", problem, ", ".join(allowed))

    def _execution(self, label: str) -> Execution:
        """How an entry is computed: as the study, the method or the entry says, the last wins."""
        name = self._entry(label).name
        defaults, defaults_at = config.method_defaults(self._folder, name)
        of_method = config.execution(
            self.execution, defaults.get("execution"), defaults_at / "execution"
        )
        at = self._where / "methods" / label / "execution"
        return config.execution(of_method, self._given[label].get("execution"), at)
