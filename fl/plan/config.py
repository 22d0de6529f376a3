"""Config files, read and checked. Nothing runs before everything in them has been understood."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from fl.api.training import Training
from fl.base import fields, folders, plugins, registry
from fl.base.errors import ConfigError, ConfigProblems, Location, meant_name, unknown_name
from fl.base.fields import Cores, Count, Index, Positive, Seed
from fl.base.files import is_file, is_folder
from fl.plan import study_files, yaml_text

Values = Mapping[str, Any]
"""Values of config keys, as YAML or a call gives them."""


@dataclass(frozen=True)
class Execution:
    """The way in which runs are computed; it is no part of a run's identity.

    Attributes:
        backend: Way in which clients are computed; `auto` chooses by the run and its data (see
            `fl.runner.job`).
        device: Device; `auto` is a GPU if there is one.
        processes: Number of processes that train a run together, see `fl.runner.team`. A job
            requests the following resources for each of them.
        threads: CPU threads; runs of portable arithmetic (`training: {arithmetic: portable}`) take
            one, as another number would give other bits.
        checkpoint_every: Rounds between checkpoints. By default a checkpoint is written whenever it
            takes at most a twentieth of the time since the last one.
        keep_state: Whether a run keeps its state after the last round, from which a run of more
            rounds goes on, see `fl.plan.continuation`. `fedloom plan` says how much room it takes.
        memory_mb: Memory that a job requests, in MiB (2**20 bytes), which schedulers call MB.
        minutes: Time that a job requests.
        gpus: GPUs that a job requests. By default one if the device is `cuda`, or if it is `auto`
            and this machine has a GPU.
        slurm_partition: Slurm partition of jobs.
        gpu_type: Type of GPU that a Slurm job requests.
        account: Slurm account of jobs.
        qos: Slurm quality of service of jobs.
        constraint: Slurm constraint of jobs.
        merge_minutes: Longest time of a cluster job of several bundles (see `fl.workflow.jobs`); 0
            merges none.
        run_minutes: Expected time of a run, if no similar run has been measured.
        log: Programs to which curves are written, in ``results/logs``, see `fl.runner.curves`.
    """

    backend: Literal["auto", "loop", "stacked", "compiled", "debug"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    processes: Cores = 1
    threads: Cores = 1
    checkpoint_every: Count | None = None
    keep_state: bool = False
    memory_mb: Count = 4000
    minutes: Count = 240
    gpus: Index | None = None
    slurm_partition: str | None = fields.renamed_field("partition", default=None)
    gpu_type: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    merge_minutes: Index = 30
    run_minutes: Positive | None = None
    log: list[Literal["tensorboard", "mlflow", "wandb"]] = field(default_factory=list)


@dataclass(frozen=True)
class Node:
    """Resources of a node of a cluster; a key without a value has no limit.

    Attributes:
        slurm_partition: Slurm partition of the node, by default the cluster's default partition.
        cpus: Cores of a node.
        memory_mb: Memory of a node, in MiB.
        gpus: GPUs of a node.
        minutes: Longest time of a job in the partition.
    """

    slurm_partition: str | None = fields.renamed_field("partition", default=None)
    cpus: Count | None = None
    memory_mb: Count | None = None
    gpus: Index | None = None
    minutes: Count | None = None

    def shortages(self, execution: Execution) -> list[str]:
        """Return requests of a job that exceed this node: ``8 gpus (the node has 4)``."""
        request = {
            "cpus": execution.processes * execution.threads,
            "memory_mb": execution.processes * execution.memory_mb,
            "gpus": execution.processes * (execution.gpus or 0),
            "minutes": execution.minutes,
        }
        return [
            f"{number} {key} (the node has {limit})"
            for key, number in request.items()
            if (limit := getattr(self, key)) is not None and number > limit
        ]


@dataclass(frozen=True)
class Settings:
    """Settings of ``config/config.yaml``: studies, folders, and the computation of runs.

    In all folders ``~`` and ``$NAME`` are replaced when the config is read (`fl.base.folders`).

    Attributes:
        studies: Files in ``studies/``, without ``.yaml``.
        results: Folder of plan, tables, report, partitions and logs.
        store: Folder of finished runs. Several people may share it.
        data: Folder of raw files and prepared arrays.
        plugins: Folders of the user's own code, which runs when the config is read.
        sources: Folder or http(s) address of raw files by data set, instead of the publisher's.
        execution: Computation of runs; a study and a method entry can set other values.
        nodes: Resources of the nodes of a cluster; a job that fits on none of them is refused.
    """

    studies: tuple[str, ...]
    results: str = "results"
    store: str = "results/runs"
    data: str = "data"
    plugins: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    execution: Execution = Execution()
    nodes: tuple[Node, ...] = ()


PER_DRAW = "per-draw"
"""Value of ``Study.seeds`` by which a run is trained with the seed of its partition."""

PredictedMetric = Literal["macro_f1", "auroc", "calibration_error", "per_class_accuracy"]
"""Metrics of final models' predictions (`fl.base.schema.PREDICTED_METRICS`)."""


@dataclass(frozen=True)
class Cells:
    """Published numbers to compare a study with: cells of one table in ``published/``.

    Attributes:
        source: Name of the file.
        table: Name of the table in that file.
        rows: Row of the table for each method entry of the study.
        columns: Column of the table for each data set or partition, as the report writes these; or
            a column for each domain, to compare with means over the clients of that domain.
        model: The model whose runs are compared, where a study has several models.
        metric: The metric to compare, by default the study's: another metric of the task; a column
            of the runs table on time, bytes or operations (``bytes_up``); a column of an analysis
            of the study (``features.nmi``); ``rounds to ENTRY``: the first round with the final
            value of that entry; ``speedup to ENTRY``: that entry's rounds divided by these.
        unit: Amount of the metric for a published 1: 4000 bytes for a thousand 32-bit numbers.
        round: The recorded round to compare, instead of the one that counts.
        modality: The modality over whose clients the mean is taken; by default over all clients.
        unseen: Whether the mean is over clients that are held out of training.
    """

    source: str
    table: str
    rows: dict[str, str]
    columns: dict[str, str | dict[str, str]]
    model: str | None = None
    metric: str | None = None
    unit: Positive = 1.0
    round: Count | None = None
    modality: str | None = None
    unseen: bool = False


@dataclass(frozen=True)
class Best:
    """Published hyper-parameters, one column of one table in ``published/``.

    Attributes:
        source: Name of the file.
        table: Name of the table in that file.
        column: Column of the table.
        rows: Row of the table by entry and key. Keys of terms and alterations are ``<name>.<key>``.
    """

    source: str
    table: str
    column: str
    rows: dict[str, dict[str, str]]


@dataclass(frozen=True)
class Search:
    """Search of hyper-parameters by `fedloom search`, with equal numbers of trials for all entries.

    A distribution is ``{log_uniform: [1e-4, 1]}``, ``{uniform: [0, 1]}``, ``{integer: [1, 5]}``
    with both ends, or ``{choice: [a, b]}``. Numbers are rounded to three digits.

    Attributes:
        trials: Number of trials of each entry; a trial is trained with all seeds.
        training: Distributions of keys of all entries, as in the study's ``training``.
        methods: Distributions of keys of single entries, as in the study's ``methods``.
        sampler: `tpe`: the tree-structured Parzen estimator of Optuna, after ten random trials; or
            `random`.
        pruner: Trials that end early, by validation data after a ninth and after a third of their
            rounds: with `halving`, all but the best third of a batch; with `median`, those worse
            than the median of all trials until then. Shorter runs are runs of their own. `none`:
            all trials have all rounds.
        batch: Trials of each entry that are trained at once; later ones follow from their values.
        seed: Seed of the search.
        seeds: Training seeds of trials, as the study's ``seeds``; by default these.
    """

    trials: Count
    training: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any] = field(default_factory=dict)
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["none", "halving", "median"] = "none"
    batch: Count = 5
    seed: Seed = 0
    seeds: Count | list[Seed] | None = None


@dataclass(frozen=True)
class Study:
    """Study in a file of ``config/studies``; ``config/README.md`` explains how to write one.

    A list instead of a single value is a grid. Numbers of entries and of ``training`` can be
    searched at random: ``lr: {log_uniform: [1e-4, 1], draws: 8}``, or ``uniform``. Keys with
    ``{together: [0.1, 0.5]}`` go through their values together: the first ones are a point.

    Attributes:
        datasets: Names of data sets, each alone or with its keys, as ``{synthetic: {alpha: 1}}``.
        partitions: Names of partition schemes, written in the same way.
        models: Names of models, written in the same way.
        methods: The study's entries, with names of your choice: hyper-parameters and training keys.
            Also a list, of names of methods or of such entries.
            ``method`` is the name of the method, if it is not the entry's name. ``start`` is the
            entry from whose model runs start; ``train_on`` an entry on whose virtual images they
            train, or a number of real samples of each class. ``terms`` are added to the loss,
            ``alterations`` to layers, ``upload_filters`` and an ``aggregation`` to uploads.
            ``dataset``, ``partition`` and ``devices`` replace the study's. ``title`` and
            ``execution`` do not change results.
        seeds: Training seeds, a run for each, or their number: 3 is 0, 1 and 2, and [3] the seed 3
            alone. A partition has a seed of its own. `per-draw`: one run, whose training seed is
            the seed of its partition, so that draws share no first network, batches, participants
            or noise.
        title: Title of the report.
        question: Question that the study answers, printed below the title.
        paper: Citation of the paper whose claim the study tests.
        shows: Tables and figures of the paper that the study shows, for ``fedloom studies``.
        departures: Known differences from the paper, which the report lists. An empty list means
            that none is known; without this key the study belongs to no paper.
        training: Training keys of all methods; an entry can set other values.
        devices: Devices of the clients, from which rounds take simulated time
            (``docs/guide/clock.md``), as ``{log-normal: {speed_sigma: 1}}``. An entry with
            ``devices: null`` has none.
        execution: Computation of this study's runs, with the keys of ``config.yaml``.
        metric: Metric of tables and claims; by default that of the data sets' task
            (`fl.api.task`).
        goal: Value of the metric to which simulated time and bytes are counted; by default 95 % of
            the best method's final value.
        test: Test samples on which a client's model is evaluated. `own`: the client's. `global`:
            those of all training clients. `reweighted`: the client's, and in addition those of all
            clients by the metric `fl.base.schema.REWEIGHTED`.
        scored: Round that counts: the `last` round, or `best`: for each client the first round with
            its best value on its own validation samples. `best` cannot be combined with
            ``metrics``, which are of the last round.
        baseline: Entry with which all others are compared in pairs.
        contrasts: More pairs in addition to a ``baseline``: by entry, the entry with which it is
            compared. P-values are corrected for these comparisons too.
        ours: Entry of your own method, which the report marks as ``(ours)``.
        keep_weights: Whether final weights are stored even if no other run or analysis reads them.
        keep_predictions: Whether predictions of final models for all samples outside training are
            stored, as ``predictions.parquet`` of the run.
        metrics: Metrics of final models' predictions in addition to those that runs record;
            predictions are stored for them. Macro F1, area under ROC and calibration error are
            those of `fl.analyses.confusion`; accuracy by class is `accuracy_of_class_0` and so on.
        max_runs: Largest number of runs; a study with more runs is refused as a mistake.
        grid: Hyper-parameters: `swept` over the entries' lists, or `published` values of ``best``
            if it has them.
        choice: Points of a grid that validation data can choose: `any`, or only those that train
            `longest`. A search with a pruner writes this, as pruned trials have fewer rounds.
        search_seed: Seed of random searches (`fl.plan.grids`).
        search: Search by `fedloom search` (``docs/guide/search.md``), see below; the runs of the
            study have its own values.
        best: Published hyper-parameters, see below.
        published: Published cells with which the report compares measured ones, see below.
        analyses: Analyses of the stored runs (`fl.analyses`).
    """

    datasets: list[Any]
    partitions: list[Any]
    models: list[Any]
    methods: dict[str, Any]
    seeds: list[Seed] | Literal["per-draw"] = field(default_factory=lambda: [0])
    title: str = ""
    question: str = ""
    paper: str = ""
    shows: str = ""
    departures: list[str] | None = None
    training: dict[str, Any] = field(default_factory=dict)
    devices: Any = None
    execution: dict[str, Any] = field(default_factory=dict)
    metric: str | None = None
    goal: Positive | None = None
    test: Literal["own", "global", "reweighted"] = "own"
    scored: Literal["last", "best"] = "last"
    baseline: str | None = None
    contrasts: dict[str, str] = field(default_factory=dict)
    ours: str | None = None
    keep_weights: bool = False
    keep_predictions: bool = False
    metrics: list[PredictedMetric] = field(default_factory=list)
    max_runs: Count = 10_000
    grid: Literal["swept", "published"] = "swept"
    choice: Literal["any", "longest"] = "any"
    search_seed: Seed = 0
    search: Search | None = None
    best: Best | None = None
    published: list[Cells] = field(default_factory=list)
    analyses: list[Any] = field(default_factory=list)


SEARCH_NOTE = (
    "search: is read by `fedloom search` and `fl.search` alone; the runs of this study have the "
    "values of its other keys"
)
"""Note of a study with the key ``search``."""


@dataclass(frozen=True)
class Draft:
    """A study as it is written, as far as its keys are right.

    Attributes:
        study: The study. A wrong key has its default; one without a default is empty.
        location: Location of the study.
        wrong_keys: The keys, those of ``training`` included, that are wrong, or stand under a
            misspelt name.
        errors: What is wrong with them.
        notes: What its author should know of it.
    """

    study: Study
    location: Location
    wrong_keys: frozenset[str] = frozenset()
    errors: tuple[ConfigError, ...] = ()
    notes: tuple[str, ...] = ()


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file (`fl.plan.yaml_text`).

    Raises:
        ConfigError: For a file that cannot be read, or is no mapping.
    """
    location = Location(os.path.relpath(path))
    return dict(fields.mapping(yaml_text.read(path, location), location))


def read_settings(folder: Path) -> Settings:
    """Return ``config.yaml`` of a config folder; its plugins are in use from now on.

    Raises:
        ConfigError: For what is wrong with it, all at once.
    """
    problems = ConfigProblems()
    settings = draft_settings(folder, problems)
    problems.raise_all()
    return settings


def draft_settings(folder: Path, problems: ConfigProblems) -> Settings:
    """Return ``config.yaml`` as far as its keys are right; a wrong key has its default.

    Args:
        folder: The config folder.
        problems: Collects what is wrong.

    Raises:
        ConfigError: If no study can be read, as studies, plugins or folders are unknown.
    """
    path = folder / "config.yaml"
    location = Location(os.path.relpath(path))
    if not is_file(path):
        advice = "`fedloom init FOLDER` makes a workspace; --config names the folder of another one"
        raise ConfigError(location, "does not exist", advice=advice)
    parsed = fields.parse_keys(Settings, read_yaml(path), location)
    problems.errors += parsed.errors
    if parsed.wrong_keys & {"studies", "plugins", "data"}:
        problems.raise_all()
    folder_problems = ConfigProblems()
    settings = _with_expanded_folders(Settings(**parsed.values), location, folder_problems)
    with problems.collected():
        _check_execution(settings.execution, location / "execution")
    with folder_problems.collected():
        plugins.use(settings.plugins, location / "plugins")
        registry.check_names(location / "plugins")
    problems.errors += folder_problems.errors
    if folder_problems.errors:
        problems.raise_all()
    datasets = registry.names("data set")
    for name, origin in settings.sources.items():
        source_location = location / "sources" / name
        if name not in datasets:
            problems.errors.append(
                unknown_name(source_location, "data set", name, datasets, "fedloom datasets")
            )
        elif not _is_address(origin) and not is_folder(Path(origin)):
            allowed = "an existing folder, or an http:// or https:// address"
            problems.errors.append(ConfigError(source_location, f"is {origin!r}", allowed))
    return settings


STUDY_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|(?<=[0-9])\.(?=[0-9])){0,99}")
"""Pattern of a study's name.

Files are named ``<study>.parquet``, ``<study>.runs.parquet`` and the like: as no letter follows a
dot in a name, no file of one study is a file of another.
"""


def check_name(name: str, location: Location) -> None:
    """Raise `ConfigError` for a name that no study can have, as files are named by it.

    Args:
        name: The name.
        location: Location of the name.
    """
    if not STUDY_NAME.fullmatch(name):
        allowed = "up to 100 letters, digits, - and _, and a . between two digits"
        raise ConfigError(location, f"{name!r} is no name for a study", allowed)


def split_names(names: Iterable[str]) -> list[str]:
    """Return the studies that a command line names: ``a b``, ``a,b`` and ``a, b`` alike."""
    return list(dict.fromkeys(word for name in names for word in re.split(r"[,\s]+", name) if word))


def _check_folder(text: str, location: Location) -> None:
    """Raise `ConfigError` for a path that is no folder and can become none."""
    path, problem = Path(text), ""
    try:
        nearest = next(folder for folder in (path, *path.parents) if _path_exists(folder))
        # `stat` raises for a link that leads in a circle or to nowhere.
        if nearest.stat() and not nearest.is_dir():
            problem = f"is {text!r}, but {nearest} is a file"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"is {text[:100]!r}, which can be no folder ({reason})"
    if problem:
        raise ConfigError(location, problem, "a folder, or a name for one to be made")


def _path_exists(path: Path) -> bool:
    """Whether a path exists, also as a link to nowhere."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _with_expanded_folders(
    settings: Settings, location: Location, problems: ConfigProblems
) -> Settings:
    """Return settings with ``~`` and environment variables in folders replaced."""
    expanded: dict[str, Any] = {}
    for key in ("results", "store", "data"):
        with problems.collected():
            text = folders.checked_folder(getattr(settings, key), location / key)
            _check_folder(text, location / key)
            expanded[key] = text
    sources: dict[str, str] = {}
    for name, origin in settings.sources.items():
        with problems.collected():
            is_address, where = _is_address(origin), location / "sources" / name
            sources[name] = origin if is_address else folders.expand(origin, where)
    used: list[str] = []
    for i, text in enumerate(settings.plugins):
        with problems.collected():
            used.append(folders.expand(text, location / "plugins" / i))
    return replace(settings, **expanded, plugins=tuple(used), sources=sources)


def _is_address(origin: str) -> bool:
    return origin.startswith(("http://", "https://"))


def read_study(folder: Path, name: str, location: Location) -> tuple[Study, Location]:
    """Return a study by name, and the location of its file.

    Args:
        folder: The config folder.
        name: The study's name.
        location: Location of the name.

    Raises:
        ConfigError: For a study that does not exist, and for what is wrong with its keys.
    """
    draft = read_draft(folder, name, location)
    ConfigProblems(draft.errors).raise_all()
    return draft.study, draft.location


def read_draft(folder: Path, name: str, location: Location) -> Draft:
    """Return a study by name, as far as its keys are right; see `read_study`.

    Raises:
        ConfigError: For a study that does not exist, or whose file cannot be read.
    """
    return parse_draft(*read_values(folder, name, location))


def read_values(folder: Path, name: str, location: Location) -> tuple[dict[str, Any], Location]:
    """Return the keys of a study as they are written, and the location of its file.

    Arguments and errors are those of `read_draft`.
    """
    check_name(name, location)
    path = study_files.file(folder, name)
    if not path.exists():
        if name in {*fields.fields(Study), *fields.fields(Training)}:
            advice = f"{name}=VALUE, if the key of a study is meant"
            raise ConfigError(location, f"unknown study {name!r}", advice=advice)
        names = study_files.files(folder)
        raise unknown_name(location, "study", name, names, "fedloom studies")
    return read_yaml(path), Location(os.path.relpath(path))


def unknown_key(location: Location, key: str, names: Iterable[str]) -> ConfigError:
    """Return the error of an unknown key of a study, which may belong to another part of it.

    Args:
        location: Location of the key.
        key: The key.
        names: The keys that may stand there.
    """
    places = {
        Study: "at the top of the study",
        Training: "under `training` or in an entry of `methods`",
        Execution: "under `execution`",
    }
    for record, place in places.items():
        if key in fields.fields(record):
            return ConfigError(location, f"unknown key {key!r}", advice=f"write it {place}")
    if key in map(registry.entry_key, registry.ADDED_KINDS):
        advice = f"write it in an entry of `methods`: {{fedavg: {{{key}: ...}}}}"
        return ConfigError(location, f"unknown key {key!r}", advice=advice)
    names = [*names]
    if key == "seed" and "seeds" in names:
        advice = "`seeds: [7]` for the seed 7 alone; `seeds: 7` is the seeds 0 to 6"
        return ConfigError(location, "unknown key 'seed' (did you mean 'seeds'?)", advice=advice)
    schemes = [s.name for s in registry.components("partition scheme") if key in s.declared]
    if schemes and not meant_name(key, names):
        scheme = "dirichlet" if "dirichlet" in schemes else schemes[0]
        advice = f"write it in a partition: {{{scheme}: {{{key}: ...}}}}"
        return ConfigError(location, f"unknown key {key!r}", advice=advice)
    return fields.unknown_key(location, key, names)


def parse_draft(values: Values, location: Location) -> Draft:
    """Return a study, from its file or from the arguments of a call, as far as its keys are right.

    Args:
        values: The keys as they are written.
        location: Location of the study.
    """
    empty: dict[str, Any] = {"datasets": [], "partitions": [], "models": [], "methods": {}}
    empty["seeds"] = []
    full_values, problems = {**values}, ConfigProblems()
    for key, in_full in (("methods", named_entries), ("seeds", seed_list)):
        if key in values:
            full_values[key] = empty[key]
            with problems.collected():
                full_values[key] = in_full(values[key], location / key)
    wrong_keys = {key for key in empty if full_values.get(key) is empty[key]}
    parsed = fields.parse_keys(Study, full_values, location, unknown=unknown_key)
    wrong_keys |= parsed.wrong_keys
    study = Study(**{**empty, **parsed.values})
    problems.errors += parsed.errors
    for key in empty:
        if key in parsed.values and not parsed.values[key] and key not in wrong_keys:
            problems.errors.append(ConfigError(location / key, "is empty", "at least one"))
    lists: dict[str, list[Any]] = {"metric": [*study.metrics]}
    if isinstance(study.seeds, list):
        lists["seed"] = study.seeds
    for noun, items in lists.items():
        key, i = f"{noun}s", second_occurrence(items)
        if i is not None:
            problem = f"{items[i]} is a duplicate"
            duplicate = ConfigError(location / key / i, problem, advice=f"each {noun} once")
            problems.errors.append(duplicate)
    notes = (SEARCH_NOTE,) if study.search else ()
    return Draft(study, location, frozenset(wrong_keys), tuple(problems.errors), notes)


def named_entries(methods: Any, location: Location) -> Any:
    """Return entries by name, from a name, a list of names and of mappings, or a mapping.

    Raises:
        ConfigError: For two entries of one name, or an item of a list that is no entry.
    """
    if isinstance(methods, str):
        return {methods: None}
    if not isinstance(methods, list | tuple):
        return methods
    entries: Values = {}
    for i, item in enumerate(methods):
        item_entries = {item: None} if isinstance(item, str) else fields.mapping(item, location / i)
        for name in item_entries:
            if name in entries:
                problem, advice = f"the entry {name!r} is a duplicate", "a name of its own for each"
                raise ConfigError(location / i, problem, advice=advice)
        entries = {**entries, **item_entries}
    return entries


def seed_list(seeds: Any, location: Location) -> Any:
    """Return training seeds as a list, from the list or from their number; or `PER_DRAW`.

    Raises:
        ConfigError: For another value.
    """
    if type(seeds) is int and seeds > 0:
        return list(range(seeds))
    if isinstance(seeds, list) or seeds == PER_DRAW:
        return seeds
    allowed = f"a number of seeds, 1 or more, a list of seeds such as [7], or {PER_DRAW}"
    raise ConfigError(location, f"is {seeds!r}", allowed)


def second_occurrence(values: Iterable[Any]) -> int | None:
    """Return the index of the first value that occurred before; None if each occurs once."""
    earlier = set()
    for i, value in enumerate(values):
        key = _hashable(value)
        if key in earlier:
            return i
        earlier.add(key)
    return None


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Mapping):
        return frozenset((key, _hashable(inner)) for key, inner in value.items())
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def check_methods(folder: Path) -> None:
    """Raise `ConfigError` for a file in ``methods/`` that would not be read.

    A README, hidden files and the copies that editors leave (``~``) may lie there.
    """
    methods = registry.names("method")
    for path in sorted((folder / "methods").glob("*")):
        if path.name.startswith((".", "README")) or path.name.endswith("~"):
            continue
        location, name = Location(os.path.relpath(path)), path.name.partition(".")[0]
        if name not in methods:
            raise unknown_name(location, "method", name, methods, "fedloom methods")
        if path.suffixes != [".yaml"]:
            problem = f"the file's name is {path.name!r}, which is not read"
            raise ConfigError(location, problem, f"{name}.yaml")


def method_defaults(folder: Path, name: str) -> tuple[Values, Location]:
    """Return the keys that ``methods/<name>.yaml`` sets for a method, and the file's location."""
    path = folder / "methods" / f"{name}.yaml"
    return (read_yaml(path) if path.exists() else {}), Location(os.path.relpath(path))


def override_execution(execution: Execution, values: Any, location: Location) -> Execution:
    """Return ``execution`` with the keys that a study or an entry sets.

    Args:
        execution: How runs are computed otherwise.
        values: The keys, as they are written.
        location: Location of the keys.

    Raises:
        ConfigError: For what is wrong with the keys.
    """
    values = fields.with_current_names(Execution, fields.mapping(values, location), location)
    checked = fields.parse(Execution, values, location)
    overridden = replace(execution, **{key: checked[key] for key in values})
    keys = ("processes", "backend", "log")
    if any(getattr(overridden, key) != getattr(execution, key) for key in keys):
        # Otherwise it is told already, where these keys are set.
        _check_execution(overridden, location)
    return overridden


def _check_execution(execution: Execution, location: Location) -> None:
    if execution.processes > 1 and execution.backend == "debug":
        problem = f"is {execution.processes}, but backend is debug, which trains one client at a "
        raise ConfigError(location / "processes", problem + "time", "1, or another backend")
    for i, name in enumerate(execution.log):
        if not is_installed(name):
            problem, advice = f"is {name}, which is not installed", f"`pip install {name}`"
            raise ConfigError(location / "log" / i, problem, advice=f"{advice}, or another list")


def is_installed(name: str) -> bool:
    """Whether a package is installed, such as one of ``Execution.log``."""
    return importlib.util.find_spec(name) is not None
