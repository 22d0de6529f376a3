"""Making what a run needs, once: prepared data sets and partitions, each under its identity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fl import data
from fl.code import identity, registry
from fl.code.registry import Entry
from fl.data import PUBLISHED, Supply, holdings, raw_name
from fl.data.dealt import deal
from fl.data.distance import domain_distances
from fl.data.lock import Lock
from fl.data.prepared import Prepared
from fl.errors import ConfigError, DataError, FedloomError, Where
from fl.files import sha256, write_json, write_table

if TYPE_CHECKING:
    import torch

    from fl.method import Method, Setting
    from fl.simulation.assembly import Composed, Parts
    from fl.simulation.simulate import Simulation

Spec = Mapping[str, Any]
"""``{"name": ..., key: value, ...}`` of a thing that the registry knows, or a run's whole spec.

That of a data set which is read from files of the user's own has their ``content``
(`fl.study.own_files`).
"""


def entry_of(kind: str, spec: Spec) -> tuple[Entry, Any]:
    """The registry's entry for a spec, and the entry's target made with the spec's values."""
    entry = registry.find(kind, spec["name"], Where("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    return entry, entry.make(values)


def dataset_id(spec: Spec) -> str:
    """``digits-<hash>``: the spec, the reader's code and the source files' checksums.

    The spec has the content of the user's own files, so that this asks for none of them.
    """
    entry, dataset = entry_of("data set", spec)
    sources = [[source.name, source.sha256] for source in data.sources(dataset)]
    code = [identity.code(entry.file), identity.code(identity.PREPARED)]
    return f"{entry.name}-{identity.digest([dict(spec), code, sources])}"


def partition_id(spec: Spec, dataset: str) -> str:
    """``dirichlet-<hash>``: the spec, the scheme's code, the data set, a user's own table."""
    entry = registry.find("partition scheme", spec["name"], Where("the spec"))
    brought = holdings.content_hash(holdings.read(spec["path"])) if "path" in spec else ""
    code = [identity.code(entry.file), identity.code(identity.DEALT)]
    return f"{entry.name}-{identity.digest([dict(spec), code, dataset, brought])}"


def parts_of(spec: Spec) -> Parts:
    """What a run's spec names, made with its values."""
    from fl.simulation.assembly import Parts

    return Parts(entry_of("model", spec["model"])[1], _method(spec))


def build(spec: Spec, setting: Setting) -> Method:
    """The method of a run's spec, or of one without a model, see `fl.simulation.assembly.build`.

    Raises `FedloomError` where the method would train as if features that are to be altered were
    not.
    """
    from fl.simulation.assembly import build

    made = build(_method(spec), setting)
    drawn = [part.draws for one in made.exchanges for part in one.passes if hasattr(part, "draws")]
    if spec.get("features") and not any(draws.keyed for draws in drawn):
        name = spec["method"]["name"]
        allowed = "none, as the method is not made by fl.recipe.recipe"
        raise FedloomError(f"{name}: features are set; allowed: {allowed}")
    return made


def _method(spec: Spec) -> Composed:
    from fl.simulation.assembly import Composed

    return Composed(
        entry_of("method", spec["method"])[1],
        tuple(entry_of("term", term)[1] for term in spec["terms"]),
        tuple(entry_of("alteration", one)[1] for one in spec.get("features", ())),
    )


def assemble(spec: Spec, bundle: Mapping[str, Any], device: torch.device) -> Simulation:
    """The simulation that a run's spec describes; missing data and partitions are made."""
    from fl.simulation.assembly import assemble

    return assemble(spec, parts_of(spec), *_dealt(spec, bundle), device)


def _dealt(spec: Spec, bundle: Mapping[str, Any]) -> tuple[Prepared, pd.DataFrame]:
    """The data set and the partition of a run."""
    root, results = Path(bundle["data"]), Path(bundle["results"])
    given = supply(spec["dataset"], bundle["sources"], bundle["lock"])
    prepared = prepare(spec["dataset"], root, given)
    return prepared, partition(spec["partition"], spec["dataset"], root, results)


def domains_of(spec: Spec, bundle: Mapping[str, Any]) -> list[str]:
    """The domain of most of each client's training samples; none where the data set has none."""
    prepared, table = _dealt(spec, bundle)
    if prepared.domain is None or not prepared.domains:
        return []
    train = table[(table["split"] == "train").to_numpy(bool)]
    kinds = pd.Series(np.asarray(prepared.domain)[train["sample"].to_numpy()], train.index)
    most = kinds.groupby(train["client"]).agg(lambda own: int(np.bincount(own).argmax()))
    return [prepared.domains[kind] for kind in most.sort_index()]


def code(spec: Spec) -> dict[str, str]:
    """What a run of that spec is computed by and on: code hashes and the ids of its data."""
    dataset = dataset_id(spec["dataset"])
    added = {
        f"{key} {one['name']}": identity.code(_entry_file(kind, one))
        for key, kind, one in _added(spec)
    }
    return {
        **added,
        "core": identity.code(identity.CORE),
        "method": identity.code(_file("method", spec)),
        "model": _model_code(spec["model"]),
        "dataset": dataset,
        "partition": partition_id(spec["partition"], dataset),
    }


def _added(spec: Spec) -> Iterator[tuple[str, str, Spec]]:
    """What a study adds to the method: as `code` calls it, its kind, its spec."""
    yield from (("term", "term", term) for term in spec["terms"])
    yield from (("features", "alteration", one) for one in spec.get("features", ()))


def _model_code(spec: Spec) -> str:
    """The code of a model, and the content of a weights file of the user's own."""
    code = identity.code(_entry_file("model", spec))
    weights = spec.get("weights")
    if not isinstance(weights, str) or not Path(weights).is_file():
        return code
    return identity.digest([code, _content(weights, Path(weights).stat().st_mtime_ns)])


@cache
def _content(path: str, changed: int) -> str:
    return sha256(Path(path))


def code_files(spec: Spec) -> dict[str, str]:
    """Every source file behind a run of that spec, with its hash."""
    kinds = {
        "method": "method",
        "model": "model",
        "dataset": "data set",
        "partition": "partition scheme",
    }
    roots = [identity.CORE, identity.PREPARED, identity.DEALT]
    roots += [_file(kind, spec, key) for key, kind in kinds.items()]
    roots += [_entry_file(kind, one) for _, kind, one in _added(spec)]
    return {name: found for root in roots for name, found in identity.files(root).items()}


def _file(kind: str, spec: Spec, key: str = "") -> Path:
    return _entry_file(kind, spec[key or kind])


def _entry_file(kind: str, spec: Spec) -> Path:
    return registry.find(kind, spec["name"], Where("the spec")).file


def supply(spec: Spec, origins: Mapping[str, str], lock: str | Path) -> Supply:
    """Where ``sources:`` of the config and the lock file say that a data set's files come from."""
    return Supply(origins.get(spec["name"]), Lock(Path(lock), raw_name(spec)))


def download(spec: Spec, root: Path, supply: Supply = PUBLISHED) -> None:
    """The raw files of a data set in its folder of ``<root>/raw``, and at last ``sources.json``."""
    _, dataset = entry_of("data set", spec)
    folder = root / "raw" / raw_name(spec)
    fetched = data.gather(dataset, folder, _held(supply, spec))
    listed = [{"name": path.name, "bytes": path.stat().st_size} for path in fetched]
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "sources.json", {"dataset": spec["name"], "files": listed})


def prepare(spec: Spec, root: Path, supply: Supply = PUBLISHED) -> Prepared:
    """The data set in ``<root>/prepared/<id>``, prepared now if it is not there."""
    entry, dataset = entry_of("data set", spec)
    folder = root / "prepared" / dataset_id(spec)
    raw = root / "raw" / raw_name(spec)
    return data.prepare(dataset, entry.name, raw, folder, _held(supply, spec))


def _held(supply: Supply, spec: Spec) -> Supply:
    """A supply that holds files to what was in them when it was planned what to do with them."""
    return replace(supply, content=spec.get("content", {}))


def partition(
    spec: Spec, dataset: Spec, root: Path, results: Path, supply: Supply = PUBLISHED
) -> pd.DataFrame:
    """The table in ``<results>/partitions/<id>``, made now if it is not there.

    Beside ``partition.parquet`` lie ``statistics.parquet``, where there are domains
    ``domains.parquet`` with the distances between them (`fl.data.distance`), and
    ``partition.json``, which says how it was made and what had to be repaired.
    """
    folder = results / "partitions" / partition_id(spec, dataset_id(dataset))
    path = folder / "partition.parquet"
    if not (folder / "partition.json").exists():
        _make_partition(spec, prepare(dataset, root, supply), folder)
    return holdings.read(path)


def _make_partition(spec: Spec, prepared: Prepared, folder: Path) -> None:
    entry = registry.find("partition scheme", spec["name"], Where("the spec"))
    values = {key: value for key, value in spec.items() if key != "name"}
    table = deal(entry.target, values, prepared, entry.name)
    folder.mkdir(parents=True, exist_ok=True)
    holdings.write(table, folder / "partition.parquet")
    statistics = holdings.statistics(table, prepared.y, len(prepared.classes))
    write_table(folder / "statistics.parquet", statistics)
    _measure_domains(table, prepared, folder)
    about = {
        "dataset": prepared.name,
        "scheme": entry.name,
        "params": values,
        "notes": table.attrs.get("notes", []),
        "unseen": holdings.unseen(table).tolist(),
        "classes": list(prepared.classes),
    }
    write_json(folder / "partition.json", about)


def _measure_domains(table: pd.DataFrame, prepared: Prepared, folder: Path) -> None:
    """``domains.parquet``, where the data set has domains and inputs between which there is a
    distance: whole numbers other than those of images are tokens.
    """
    tokens = prepared.x.dtype.kind in "iu" and prepared.x.dtype != np.uint8
    if prepared.domain is None or not prepared.domains or tokens:
        return
    trained = table.loc[(table["split"] == "train").to_numpy(bool), "sample"].to_numpy()
    found = domain_distances(prepared.x, prepared.domain, trained)
    for side in ("domain", "other"):
        found[side] = np.array(prepared.domains)[found[side]]
    write_table(folder / "domains.parquet", found)


def validates(scheme: Spec) -> bool:
    """Whether a partition of that scheme has validation samples to choose a grid's point by."""
    if "path" in scheme:
        return bool((holdings.read(scheme["path"])["split"] == "val").any())
    return bool(scheme.get("val", 0))


def holds_out(scheme: Spec) -> bool:
    """Whether a partition of that scheme has clients that are held out of training."""
    if "path" in scheme:
        table = holdings.read(scheme["path"])
        return "unseen" in table and bool(table["unseen"].any())
    return bool(scheme.get("unseen", 0))


def share(scheme: Spec, split: str) -> float:
    """The share of a client's samples in ``val`` or ``test``, as far as the scheme's keys tell."""
    given = scheme.get(split, 0.0)
    return 0.0 if isinstance(given, str) else float(given)


def check_fit(scheme: Spec, dataset: Spec, where: Where) -> None:
    """Refuse at once a partition that cannot be made of that data set (`ConfigError`)."""
    _, found = entry_of("data set", dataset)
    clients, per_client = scheme.get("clients"), scheme.get("classes_per_client", 1)
    least = max(3, scheme.get("min_samples", 0))
    if clients and found.size is not None and found.size < least * clients:
        problem = f"is {clients}, too many for the {found.size} samples of {dataset['name']}"
        allowed = f"at most {found.size // least}, so that each gets {least} or more"
        raise ConfigError(where / "clients", problem, allowed)
    if clients and found.size is not None and found.size < per_client * clients:
        problem = f"is {clients}, too many for {per_client} classes each of {found.size} samples"
        allowed = f"at most {found.size // per_client}, so that a holder of a class gets a sample"
        raise ConfigError(where / "clients", problem, allowed)
    for key in ("classes_per_client", "dominant_classes"):
        if scheme.get(key, 1) > found.classes:
            problem = f"is {scheme[key]}, but {dataset['name']} has {found.classes} classes"
            raise ConfigError(where / key, problem, f"1 to {found.classes}")
    if scheme.get("test", 0.5) in (0, 1) or share(scheme, "val") + share(scheme, "test") >= 1:
        problem = f"is {scheme['test']} beside val {scheme.get('val', 0)}"
        raise ConfigError(where / "test", problem, "test > 0 and val + test < 1")
    unseen = scheme.get("unseen", 0)
    if clients and not isinstance(unseen, str) and unseen >= clients:
        problem = f"is {unseen}, but there are {clients} clients"
        raise ConfigError(where / "unseen", problem, f"a share < 1, or at most {clients - 1}")
    _check_published(scheme, dataset, getattr(found, "published_splits", None), where)
    if "clients_per_domain" in scheme and not getattr(found, "domains", ()):
        raise ConfigError(where, f"{dataset['name']} has no domains", "a data set that has")
    if scheme["name"] == "natural" and not found.natural:
        allowed = "another scheme, or a data set that has"
        raise ConfigError(where, f"{dataset['name']} has no clients of its own", allowed)
    if "path" in scheme:
        try:
            table = holdings.read(scheme["path"])
            holdings.check_columns(table, scheme["path"])
            size = table["sample"].max() + 1 if found.size is None else found.size
            holdings.validate(table, np.broadcast_to(0, size), source=scheme["path"])
        except DataError as error:
            raise ConfigError(where / "path", str(error)) from None


def _check_published(
    scheme: Spec, dataset: Spec, splits: tuple[str, ...] | None, where: Where
) -> None:
    """Refuse a published split that a data set does not have, or that leaves nothing to train on.

    splits: those that it has; None: nobody knows before it is read.
    """
    asked = [key for key in ("val", "test", "unseen") if scheme.get(key) == "published"]
    for key in asked:
        wanted = "train" if key == "unseen" else key
        if splits is not None and wanted not in splits:
            problem = f"is published, but {dataset['name']} has no published {wanted} split"
            raise ConfigError(where / key, problem, "a number, or a data set that has one")
    if splits and not {*splits} - {*asked}:
        problem = f"is published, as are all samples of {dataset['name']}: none is left to train on"
        raise ConfigError(where / asked[-1], problem, "a number, or another data set")
