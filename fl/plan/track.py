"""Tracks: ``config/tracks/NAME.yaml``, a pool of clients on which many methods are compared.

A third of the pool's clients are for tuning and form a federation of their own; the others are
scored, and choose nothing. The file says all that is decided before anything is trained: clients,
grids, what is compared with what, and from which difference on two entries are not equal.

A *trial* is an entry of a track at one point of its grid. An entry that starts from another one is
trained for its rounds after the start was trained for the rest of the track's rounds.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fl.api.training import Training
from fl.base import fields, registry
from fl.base.declaration import declaration_of
from fl.base.errors import ConfigError, ConfigProblems, Location, unknown_name
from fl.base.fields import Bound, Count, Field, Positive, Seed
from fl.base.schema import GLOBAL, rising
from fl.base.units import values_text
from fl.plan import config
from fl.plan.config import Values
from fl.plan.grids import EXCLUSIVE, RESERVED, is_grid
from fl.plan.method_entries import TUNED

FOLDER = "tracks"
"""Folder of the files in the config folder."""

Role = Literal["participants", "newcomers"]

PARTICIPANTS: Role = "participants"
NEWCOMERS: Role = "newcomers"
"""Clients who train, and clients who come when training is over."""

TUNING, SCORED = "tuning", "scored"
"""Parts of a pool."""

OWN_PARTITION_KEYS = ("seed", "part", "division", "unseen", "newcomer_samples")
"""Keys of a partition that follow from ``clients`` and ``draws``."""

CLIENT_KEYS = ("dataset", "partition", "train_on")
"""Keys of a study's entry that would give it other data than the others have."""

IS = "is"
"""Key of a no-op that names the entry that it equals."""

EXECUTION = {"backend": "stacked", "run_minutes": 0.1}
"""How runs are computed: by one backend, as backends may differ by rounding."""

Point = tuple[tuple[str, Any], ...]
"""Values of the keys of a grid, in the order of the grid."""

Grid = dict[str, list[Any]]
"""Values of each key of an entry that has several."""


@dataclass(frozen=True)
class Clients:
    """Which clients of the pool do what.

    Attributes:
        division: Seed by which a third of the clients is chosen for tuning, and by which a
            partition scheme makes the clients.
        newcomers: Share of the clients of a federation that come after training.
        newcomer_samples: Largest number of training samples of a newcomer.
    """

    division: Seed = 0
    newcomers: Annotated[float, Bound(low=0, below=1)] = 0.2
    newcomer_samples: Count = 20


@dataclass(frozen=True)
class Draws:
    """Seeds of the draws: of splits, newcomers, first networks and batches.

    Attributes:
        tuning: Draws of the tuning clients.
        scored: Draws of the scored clients.
    """

    tuning: list[Seed] = field(default_factory=lambda: [100, 101])
    scored: list[Seed] = field(default_factory=lambda: [*range(8)])


@dataclass(frozen=True)
class Family:
    """Comparisons whose p-values are corrected together.

    Attributes:
        baseline: The entry with which the others are compared.
        entries: The others.
        clients: The clients over whom they are compared.
    """

    baseline: str
    entries: list[str]
    clients: Role = PARTICIPANTS


@dataclass(frozen=True)
class Budget:
    """A multiple of the track's rounds at which entries are trained.

    Attributes:
        times: The multiple.
        best: Number of the entries, the best at the budget before; by default all of them.
    """

    times: Count
    best: Count | None = None


@dataclass(frozen=True)
class TrackKeys:
    """Keys of a track's file.

    Attributes:
        dataset: Name of the data set, alone or with its keys.
        partition: Name of the partition scheme, alone or with its keys.
        model: Name of the model, alone or with its keys.
        training: Keys of training of all entries, ``rounds`` among them.
        lr: Learning rates of all entries that have none of their own.
        methods: The entries, as in a study. A list is a grid; an entry with a ``start`` has
            ``rounds``.
        families: What is compared with what, by name.
        margin: Largest difference of equal entries, in the unit of the metric.
        title: Title of the track.
        question: Question that it answers.
        metric: What is compared.
        clients: Which clients do what.
        draws: Seeds of the draws.
        no_ops: By entry, values of keys at which it does nothing of its own, and under ``is`` the
            entry that it then is.
        diverged: What clients get of a run that diverged: the ``floor``, what their most frequent
            class or the mean of their targets gets.
        budgets: Multiples of the track's rounds at which entries are trained, by default 1 alone.
        always: Entries that are trained at each of them, in addition to baselines.
        added: Entries that were added after results of others had been seen, to be marked.
    """

    dataset: Any
    partition: Any
    model: Any
    training: dict[str, Any]
    lr: list[Positive]
    methods: dict[str, Any]
    families: dict[str, Family]
    margin: Positive
    title: str = ""
    question: str = ""
    metric: Literal["accuracy", "rmse"] = "accuracy"
    clients: Clients = Clients()
    draws: Draws = Draws()
    no_ops: dict[str, Any] = field(default_factory=dict)
    diverged: Literal["floor"] = "floor"
    budgets: list[Budget] = field(default_factory=list)
    always: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Trial:
    """An entry at a point of its grid.

    Attributes:
        entry: Name of the entry.
        point: The point.
        start: The point of the entry from which it starts; empty without one.
    """

    entry: str
    point: Point
    start: Point = ()


@dataclass(frozen=True)
class Track(TrackKeys):
    """A track.

    Attributes:
        name: Its name, that of the file.
        path: The file.
    """

    name: str = ""
    path: Path = Path()

    @property
    def location(self) -> Location:
        """Location of the file in errors."""
        return Location(os.path.relpath(self.path))

    @property
    def sign(self) -> int:
        """1 if more of the metric is better, -1 if less is."""
        return 1 if rising(self.metric) else -1

    def of_division(self, division: int) -> Track:
        """Return the track with other tuning clients."""
        return replace(self, clients=replace(self.clients, division=division))

    def keys(self, name: str) -> Values:
        """Return the keys of an entry."""
        return self.methods[name] or {}

    def start(self, name: str) -> str | None:
        """Return the entry from which an entry starts."""
        start = self.keys(name).get("start")
        return None if start is None else str(start)

    def title_of(self, name: str) -> str:
        """Return the name of an entry in print."""
        keys, start = self.keys(name), self.start(name)
        if "title" in keys:
            return str(keys["title"])
        if start and name == f"{start}{TUNED}":
            return f"{self.title_of(start)}{TUNED.upper()}"
        declared = declaration_of(self.target(name)).title
        return declared if keys.get("method", name) in (name, self.target(name)) else name

    def roles(self, name: str) -> list[Role]:
        """Return the clients for whom an entry is chosen.

        They are those of its families, and of the families of what starts from it.
        """
        names = {name, *(other for other in self.methods if self.start(other) == name)}
        found = {f.clients for f in self.families.values() if names & {f.baseline, *f.entries}}
        return [role for role in (PARTICIPANTS, NEWCOMERS) if role in found]

    def serves_clients(self, name: str, role: Role) -> bool:
        """Whether an entry gives clients of a role a model.

        Newcomers get the shared model, if it is all there is, or learn alone.
        """
        declared = declaration_of(self.target(name))
        return role == PARTICIPANTS or declared.stages == (GLOBAL,) or declared.independent

    def entries(self, role: Role | None = None) -> list[str]:
        """Return the entries that are compared, of all clients or of some, in order."""
        families = [f for f in self.families.values() if role in (None, f.clients)]
        names = {name for f in families for name in (f.baseline, *f.entries)}
        return [name for name in self.methods if name in names]

    def rounds(self, times: int = 1) -> int:
        """Return the rounds of the track at a budget."""
        return int(self.training["rounds"]) * times

    def grid(self, name: str, times: int = 1) -> Grid:
        """Return the grid of an entry; rounds are multiplied by the budget."""
        declared, keys = self.declared(name), self.keys(name)
        values = {**({} if "lr" in keys else {"lr": self.lr}), **keys}
        grid = {k: v for k, v in values.items() if is_grid(declared.get(k), v)}
        if "rounds" in grid:
            grid["rounds"] = [value * times for value in grid["rounds"]]
        return {
            key: [fields.value(declared[key].hint, v, self._place(name) / key) for v in values]
            for key, values in grid.items()
        }

    def declared(self, name: str) -> dict[str, Field]:
        """Return the hyper-parameters of an entry's method, and the keys of training."""
        return fields.fields(Training) | fields.fields(self.target(name))

    def no_op(self, name: str) -> Values:
        """Return the values of keys at which an entry does nothing of its own; empty if none."""
        return {key: v for key, v in self.no_ops.get(name, {}).items() if key != IS}

    def equalled(self, trial: Trial) -> str:
        """Return the entry that a trial equals, as it does nothing of its own; empty if none.

        What starts from an entry at its no-op equals what starts in the same way from the entry
        that this then is: FedProx-FT is FedAvg-FT if ``mu`` of FedProx is 0.
        """
        values, point = self.no_op(trial.entry), dict(trial.point)
        if values and all(point[key] == value for key, value in values.items()):
            return str(self.no_ops[trial.entry][IS])
        start = self.start(trial.entry)
        start_equals = self.equalled(Trial(start, trial.start)) if start else ""
        return next(
            (
                other
                for other in self.methods
                if start_equals
                and self.start(other) == start_equals
                and self._without_start(other) == self._without_start(trial.entry)
            ),
            "",
        )

    def _without_start(self, name: str) -> Values:
        """Return the keys of an entry without its start and its title."""
        return {k: v for k, v in self.keys(name).items() if k not in ("start", "title")}

    def beyond(self, name: str, key: str, values: Collection[Any], times: int, end: Any) -> Grid:
        """Return two values, or as many as are allowed, beyond an end of the values of a key.

        They go on by the ratio of the last two, and where this is not allowed halfway to the bound.
        Nothing is beyond a no-op.

        Returns:
            The values by the key; nothing if there are none.
        """
        is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        if not is_number or len(values) < 2 or end == self.no_op(name).get(key):
            return {}
        ordered = sorted(values)
        if end not in (ordered[0], ordered[-1]) or end <= 0:
            return {}
        upper = end == ordered[-1]
        inner = ordered[-2] if upper else ordered[1]
        ratio = end / inner if inner > 0 else 2.0
        hint, last, found = self.declared(name)[key].hint, end, []
        limit = _limit(hint, upper)
        if key == "rounds" and self.start(name):
            limit = self.rounds(times) if upper else 0
        for _ in range(2):
            steps = [last * ratio, (last + limit) / 2 if math.isfinite(limit) else math.nan]
            if isinstance(end, int):
                whole = math.ceil if upper else math.floor
                steps = [whole(step) if math.isfinite(step) else step for step in steps]
            allowed = [
                step
                for step in (type(end)(f"{s:.6g}") for s in steps if math.isfinite(s))
                if (step > last if upper else step < last) and _admits(hint, step, self.location)
            ]
            if key == "rounds" and self.start(name):
                allowed = [step for step in allowed if step < limit or not upper]
            if not allowed:
                break
            last = allowed[0]
            found.append(last)
        return {key: found} if found else {}

    def _place(self, name: str) -> Location:
        return self.location / "methods" / name

    def target(self, name: str) -> Any:
        """Return the method of an entry."""
        method = self.keys(name).get("method", name)
        if not isinstance(method, str):
            return method
        return registry.find("method", method, self._place(name)).target


def _limit(hint: Any, upper: bool) -> float:
    """Return the upper or lower bound of an annotation's numbers, or infinity."""
    bounds = [b for b in getattr(hint, "__metadata__", ()) if isinstance(b, Bound)]
    if not bounds:
        return math.inf
    [bound] = bounds
    return min(bound.high, bound.below) if upper else max(bound.low, bound.above)


def _admits(hint: Any, number: float, location: Location) -> bool:
    """Whether an annotation allows a number."""
    try:
        fields.value(hint, number, location)
    except ConfigError:
        return False
    return True


def names(folder: Path) -> list[str]:
    """Return the names of the tracks of a config folder."""
    return sorted(path.stem for path in (folder / FOLDER).glob("*.yaml"))


def read(folder: Path, name: str) -> Track:
    """Return a track of a config folder.

    Raises:
        ConfigError: For an unknown track, and for what is wrong with its file, all at once.
    """
    path = folder / FOLDER / f"{name}.yaml"
    if name not in names(folder):
        raise unknown_name(Location(os.path.relpath(folder / FOLDER)), "track", name, names(folder))
    return parse(config.read_yaml(path), name, path)


def parse(values: Values, name: str, path: Path) -> Track:
    """Return the track that the keys of a file say.

    Raises:
        ConfigError: For what is wrong with them, all at once.
    """
    location = Location(os.path.relpath(path))
    keys = dict(values)
    if "methods" in keys:
        keys["methods"] = config.named_entries(keys["methods"], location / "methods")
    found = fields.parse(TrackKeys, keys, location)
    found["budgets"] = found["budgets"] or [Budget(1)]
    track = Track(name=name, path=path, **found)
    _check_training(track)
    problems = ConfigProblems()
    for entry in track.methods:
        with problems.collected():
            check_entry(track, entry, location / "methods" / entry)
    problems.raise_all()
    for check in (_check_families, _check_no_ops, _check_budgets, _check_draws, _check_shared):
        with problems.collected():
            check(track)
    problems.raise_all()
    return track


def _check_training(track: Track) -> None:
    """Raise `ConfigError` for training keys without rounds, which entries need, or with a rate."""
    location = track.location / "training"
    if "rounds" not in track.training:
        raise ConfigError(location / "rounds", "is missing", "a whole number")
    fields.value(Count, track.training["rounds"], location / "rounds")
    if "lr" in track.training:
        raise ConfigError(location / "lr", "stands at the wrong place", advice="`lr` at the top")


def check_entry(track: Track, name: str, location: Location) -> None:
    """Raise `ConfigError` for what is wrong with an entry.

    Args:
        track: The track.
        name: Name of the entry.
        location: Location of the entry's keys.
    """
    problems = ConfigProblems()
    keys = fields.mapping(track.methods[name], location)
    declared = track.declared(name)
    for key, value in keys.items():
        with problems.collected():
            if key in declared:
                for item in value if is_grid(declared[key], value) else [value]:
                    fields.value(declared[key].hint, item, location / key)
                if isinstance(value, list) and is_grid(declared[key], value):
                    place = config.second_occurrence(value)
                    if place is not None:
                        problem = f"{value[place]} is a duplicate"
                        raise ConfigError(location / key / place, problem, advice="each once")
            elif key in CLIENT_KEYS:
                problem = "would change the clients of the track"
                raise ConfigError(location / key, problem, advice="a track of its own")
            elif key not in RESERVED:
                others = [other for other in RESERVED if other not in CLIENT_KEYS]
                raise fields.unknown_key(location / key, key, [*declared, *others])
    problems.raise_all()
    start = track.start(name)
    if start is None:
        return
    if start not in track.methods:
        raise unknown_name(location / "start", "entry", start, track.methods)
    if track.start(start) is not None:
        problem = f"is {start!r}, which itself starts from another entry"
        raise ConfigError(location / "start", problem, advice="an entry without a start")
    if "rounds" not in keys:
        raise ConfigError(location / "rounds", "is missing", "a number, or a list of numbers")
    rounds = keys["rounds"] if isinstance(keys["rounds"], list) else [keys["rounds"]]
    if max(rounds) >= track.rounds():
        allowed = f"less than the track's {track.rounds()}, of which its start has the rest"
        raise ConfigError(location / "rounds", f"is {max(rounds)}", allowed)


def _check_families(track: Track) -> None:
    """Raise `ConfigError` for what is wrong with families, and for entries that are of none."""
    problems = ConfigProblems()
    for name, family in track.families.items():
        location = track.location / "families" / name
        for key, entry in [
            ("baseline", family.baseline),
            *((f"entries.{i}", entry) for i, entry in enumerate(family.entries)),
        ]:
            if entry not in track.methods:
                problems.errors += [unknown_name(location / key, "entry", entry, track.methods)]
        if not family.entries:
            problems.errors += [ConfigError(location / "entries", "is empty", "names of entries")]
        place = config.second_occurrence([family.baseline, *family.entries])
        if place is not None:
            problem = f"{family.entries[place - 1]!r} stands there twice"
            if family.entries[place - 1] == family.baseline:
                problem = f"{family.baseline!r} is the baseline"
            problems.errors += [ConfigError(location / "entries" / (place - 1), problem)]
        for i, entry in enumerate(family.entries):
            if entry in track.methods and not track.serves_clients(entry, family.clients):
                problem = f"{entry!r} gives newcomers no model"
                allowed = "methods with a shared model alone, or whose clients learn alone"
                problems.errors += [ConfigError(location / "entries" / i, problem, allowed)]
        if family.clients == NEWCOMERS and not track.clients.newcomers:
            problem = f"is {NEWCOMERS}, and the share of newcomers is 0"
            problems.errors += [ConfigError(location / "clients", problem)]
    for entry in track.methods:
        if not track.roles(entry):
            problem = "is in no family, and nothing starts from it"
            problems.errors += [ConfigError(track.location / "methods" / entry, problem)]
    for key, entries in (("always", track.always), ("added", track.added)):
        for i, entry in enumerate(entries):
            if entry not in track.methods:
                place_of = track.location / key / i
                problems.errors += [unknown_name(place_of, "entry", entry, track.methods)]
    problems.raise_all()


def _check_no_ops(track: Track) -> None:
    """Raise `ConfigError` for what is wrong with the no-op of any entry."""
    problems = ConfigProblems()
    for name in track.no_ops:
        with problems.collected():
            check_no_op(track, name, track.location / "no_ops" / name)
    problems.raise_all()


def check_no_op(track: Track, name: str, location: Location) -> None:
    """Raise `ConfigError` for the no-op of an unknown entry, and for one that no grid has.

    Args:
        track: The track.
        name: Name of the entry.
        location: Location of the no-op.
    """
    if name not in track.methods:
        raise unknown_name(location, "entry", name, track.methods)
    keys, grid = fields.mapping(track.no_ops[name], location), track.grid(name)
    if IS not in keys:
        raise ConfigError(location / IS, "is missing", "the entry that it then is")
    if not isinstance(keys[IS], str) or keys[IS] not in track.methods or keys[IS] == name:
        others = {*track.methods} - {name}
        raise unknown_name(location / IS, "entry", keys[IS], others)
    if len(keys) == 1:
        raise ConfigError(location, "has no key", ", ".join(grid))
    for key in keys.keys() - {IS}:
        if keys[key] not in grid.get(key, []):
            problem = f"is {keys[key]!r}, which is not in the grid of the entry"
            allowed = ", ".join(map(str, grid.get(key, []))) or f"keys {', '.join(grid)}"
            raise ConfigError(location / key, problem, allowed)


def _check_budgets(track: Track) -> None:
    """Raise `ConfigError` unless budgets rise from 1."""
    location, times = track.location / "budgets", [budget.times for budget in track.budgets]
    if times[0] != 1 or any(a >= b for a, b in itertools.pairwise(times)):
        raise ConfigError(location, f"are {times}", "rising multiples, of which the first is 1")
    if track.budgets[0].best is not None:
        raise ConfigError(location / 0 / "best", "is set", "all entries at the first budget")


def _check_draws(track: Track) -> None:
    """Raise `ConfigError` for draws that occur twice, or are too few."""
    for key, least in ((TUNING, 1), (SCORED, 2)):
        seeds, location = getattr(track.draws, key), track.location / "draws" / key
        if len(seeds) < least:
            raise ConfigError(location, f"has {len(seeds)}", f"at least {least}")
        place = config.second_occurrence(seeds)
        if place is not None:
            raise ConfigError(location / place, f"{seeds[place]} is a duplicate")


def _check_shared(track: Track) -> None:
    """Raise `ConfigError` for keys that follow from others, and without rates."""
    location = track.location / "partition"
    name, keys = named(track.partition, location)
    for key in OWN_PARTITION_KEYS:
        if key in keys:
            advice = "`clients` and `draws` of the track"
            raise ConfigError(location / name / key, "follows from other keys", advice=advice)
    location, place = track.location / "lr", config.second_occurrence(track.lr)
    if not track.lr:
        raise ConfigError(location, "is empty", "learning rates")
    if place is not None:
        raise ConfigError(location / place, f"{track.lr[place]} is a duplicate")


def named(item: Any, location: Location) -> tuple[str, dict[str, Any]]:
    """Return name and keys of a component that a file writes as ``name`` or ``{name: keys}``."""
    if isinstance(item, str):
        return item, {}
    if isinstance(item, Mapping) and len(item) == 1:
        [(name, keys)] = item.items()
        return str(name), dict(fields.mapping(keys, location / str(name)))
    raise ConfigError(location, f"is {item!r}", "a name, or a name with its keys")


def points(grid: Mapping[str, Sequence[Any]]) -> Iterator[Point]:
    """Yield all points of a grid."""
    for values in itertools.product(*grid.values()):
        yield tuple(zip(grid, values, strict=True))


def point_text(point: Point) -> str:
    """Return a point as tables show it: ``mu=0.1, lr=0.4``."""
    return values_text(dict(point))


@dataclass(frozen=True)
class TrackStudy:
    """A study of trials of a track.

    Attributes:
        arguments: The arguments of `fl.run` beside its name.
        labels: The entry of the study of each trial.
        starts: The entry of the study from which each trial starts; absent without one.
    """

    arguments: Values
    labels: Mapping[Trial, str]
    starts: Mapping[Trial, str]


def study(track: Track, part: str, trials: Iterable[Trial], times: int = 1) -> TrackStudy:
    """Return the study that trains trials on a part of the pool, in all draws of the part.

    Args:
        track: The track.
        part: `TUNING` or `SCORED`.
        trials: The trials.
        times: The budget.
    """
    entries: dict[str, Any] = {}
    labels: dict[Trial, str] = {}
    starts: dict[Trial, str] = {}
    label_of_start: dict[tuple[str, Point, int], str] = {}
    for trial in dict.fromkeys(trials):
        entry = _entry(track, trial.entry, trial.point, times)
        start = track.start(trial.entry)
        if start is not None:
            start_entry = _entry(track, start, trial.start, times)
            whole, rest = track.rounds(times), track.rounds(times) - entry["rounds"]
            start_entry["rounds"] = start_entry.get("rounds", whole) * rest // whole
            place = start, trial.start, rest
            if place not in label_of_start:
                label_of_start[place] = f"{start}.start-{len(label_of_start)}"
                entries[label_of_start[place]] = start_entry
            entry["start"] = starts[trial] = label_of_start[place]
        labels[trial] = f"{trial.entry}.{len(labels)}"
        entries[labels[trial]] = entry
    name, keys = named(track.partition, track.location / "partition")
    clients, seeds = track.clients, getattr(track.draws, part)
    keys |= {"part": part, "division": clients.division, "seed": seeds}
    if clients.newcomers:
        keys |= {"unseen": clients.newcomers, "newcomer_samples": clients.newcomer_samples}
    arguments = {
        "dataset": track.dataset,
        "partition": {name: keys},
        "model": track.model,
        "methods": entries,
        "seeds": config.PER_DRAW,
        "metric": track.metric,
        "training": {**track.training, "rounds": track.rounds(times)},
        "execution": EXECUTION,
    }
    return TrackStudy(arguments, labels, starts)


def _entry(track: Track, name: str, point: Point, times: int) -> dict[str, Any]:
    """Return the keys of an entry of a study: those of an entry of the track, at a point."""
    entry = {"method": name, **track.keys(name), **dict(point)}
    entry.pop("title", None)
    if "rounds" in entry and "rounds" not in dict(point):
        entry["rounds"] *= times
    if track.start(name) is not None and not any(key in entry for key in EXCLUSIVE):
        # Fine-tuning has work of its own by default; here it has that of the track.
        entry |= {key: track.training[key] for key in EXCLUSIVE if key in track.training}
    return entry
