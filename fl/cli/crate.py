"""A study as an RO-Crate: a folder with its config, code, runs, tables and report, and with
``ro-crate-metadata.json``, which says what is what, as https://w3id.org/ro/crate/1.3 defines it.

::

    config/    the study, what it reads of the config, and a config.yaml of its own
    code/      fl and the plugins, the lock file of packages, the licence
    runs/      the study's runs, a store
    results/   partitions, analyses, tables, report

The folder is one to work in: ``PYTHONPATH=code python -m fl report STUDY`` makes the report again.
Data sets are not in it: they are cited, with the addresses they come from.
"""

from __future__ import annotations

import importlib.util
import mimetypes
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from fl import report
from fl.base import files, plugins, registry
from fl.base.errors import FedloomError, Location
from fl.base.registry import Documentation
from fl.base.units import quantity
from fl.cli import anonymous as nameless
from fl.cli.store_commands import readable
from fl.data.lock import NAME as LOCK
from fl.plan import analyses, config, plan
from fl.plan.config import Execution
from fl.plan.plan import Plan
from fl.report import references
from fl.report.facts import Facts, gather
from fl.report.references import Work
from fl.runner import environment
from fl.store import import_export
from fl.store.import_export import NEW
from fl.store.store import Store
from fl.workflow import snapshot

SITE = ("slurm_partition", "account", "qos", "constraint", "gpu_type")
"""Keys of `execution` that are of one cluster."""
TYPES = {".yaml": "application/yaml", ".parquet": "application/vnd.apache.parquet"}
README = """\
# {title}

{question}

A study of Fedloom {version}, with {there} of its {runs} runs. `results/report/{name}.html` says
what came out, what differs from a paper, and what is cited.

    python -m venv .venv
    .venv/bin/python -m pip install -r code/requirements.lock
    export PYTHONPATH=code
    .venv/bin/python -m fl store verify      # every file of `runs` against its checksum
    .venv/bin/python -m fl report {name}     # tables and report, from `runs`
    .venv/bin/python -m fl recompute RUN     # trains a run again, and compares

Data sets are not included: `fl datasets NAME` says where each comes from, and its publisher how it
may be used.
"""


def write(
    folder: Path, name: str, place: Path, licence: str, anonymous: bool = False
) -> Iterator[str]:
    """Write the crate of a study, and say what is in it.

    Args:
        folder: The config's.
        place: A folder or a file ``*.zip`` that is not there yet; it appears when it is whole.
        licence: The address of its licence.
        anonymous: See `fl.cli.anonymous`.

    Raises:
        FedloomError: For a place that is taken, a damaged run, a package that is missing, a disk
            that refuses, and where what is anonymous would tell a name.
    """
    if place.exists():
        raise FedloomError(f"{place}: is there already; choose another name")
    if importlib.util.find_spec("rocrate") is None:
        allowed = "`make extras`, or `pip install rocrate`"
        raise FedloomError(f"a crate needs the package rocrate, which is not there; {allowed}")
    planned = plan.read_or_make(folder, [name])
    with files.disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent, prefix=".fedloom-") as draft:
            stage = Path(draft) / "crate"
            _code(stage, Path(draft), anonymous)
            _config(stage / "config", folder, name, planned)
            there = _runs(stage / "runs", name, planned, anonymous)
            facts = _results(stage, name, planned)
            _readme(stage, facts, there)
            _metadata(stage, facts, licence)
            if anonymous:
                nameless.check(stage, folder, planned.settings)
            if place.suffix == ".zip":
                stage = Path(shutil.make_archive(str(Path(draft) / "crate"), "zip", stage))
            stage.rename(place)
    yield f"{there} of {quantity(len(facts.runs['run'].unique()), 'run')} are in it"
    yield str(place)


def _code(stage: Path, draft: Path, anonymous: bool) -> None:
    shutil.copytree(snapshot.take(draft), stage / "code")  # Links become files.
    if anonymous:
        files.write_json(stage / "code" / plugins.SNAPSHOT.name, {"commit": None})
    if (licence := environment.ROOT / "LICENSE").is_file():
        shutil.copyfile(licence, stage / "code" / licence.name)


def _config(target: Path, folder: Path, name: str, planned: Plan) -> None:
    study, _ = config.read_study(folder, name, Location(name))
    names = planned.studies[name].names
    sources = {cells.source for cells in study.published}
    sources |= {study.best.source} if study.best else set()
    wanted = [
        folder / "studies" / f"{name}.yaml",
        *(folder / "methods" / f"{method}.yaml" for method in names["method"]),
        *(folder / "published" / source for source in sorted(sources)),
    ]
    for path in wanted:
        if path.is_file():
            to = target / path.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
    if (lock := folder / LOCK).is_file():
        known = files.parse_json(lock.read_bytes())
        used = {key: known[key] for key in names["data set"] if key in known}
        files.write_json(target / LOCK, used)
    settings = planned.settings
    execution = {
        key: value
        for key, value in asdict(settings.execution).items()
        if value != getattr(Execution(), key) and key not in SITE
    }
    made = {
        "studies": [name],
        "store": "runs",
        "plugins": [f"code/{Path(plugin).resolve().name}" for plugin in settings.plugins],
        "execution": execution,
    }
    said = yaml.safe_dump({key: value for key, value in made.items() if value}, sort_keys=False)
    files.write_bytes(target / "config.yaml", said.encode())


def _runs(target: Path, name: str, planned: Plan, anonymous: bool) -> int:
    """Copy the study's runs that are there, each checked; how many."""
    source, store = readable(planned.settings.store), Store(target)
    target.mkdir(parents=True)
    runs = sorted({run.run for run in planned.studies[name].runs if source.has(run.run)})
    for run in runs:
        moved = import_export.bring(run, source, store)
        if moved.outcome != NEW:
            raise FedloomError(f"{run}: {moved.why or moved.outcome}")
        if anonymous:
            nameless.record(store.place(run))
    return len(runs)


def _results(stage: Path, name: str, planned: Plan) -> Facts:
    study, results = planned.studies[name], Path(planned.settings.results)
    made = [results / "partitions" / run.partition_id for run in study.runs]
    made += [analyses.folder_of(results, each.analysis) for each in study.analyses]
    for path in dict.fromkeys(made):
        if path.is_dir():
            shutil.copytree(path, stage / "results" / path.relative_to(results))
    report.build(name, stage / "results", stage / "runs", study.to_json())
    return gather(name, stage / "results", stage / "runs", study.to_json())


def _readme(stage: Path, facts: Facts, there: int) -> None:
    runs = len(facts.runs["run"].unique())
    told = {key: facts.plan[key] for key in ("title", "question")}
    text = README.format(
        **told, name=facts.plan["study"], version=environment.VERSION, there=there, runs=runs
    )
    files.write_bytes(stage / "README.md", text.encode())


def _metadata(stage: Path, facts: Facts, licence: str) -> None:
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    crate = ROCrate()

    def entity(id: str, kind: str, **properties: Any) -> Any:
        known = {key: value for key, value in properties.items() if value}
        return crate.add(ContextEntity(crate, id, {"@type": kind, **known}))

    crate.name = facts.plan["title"]
    crate.description = f"{facts.plan['question']} {facts.status}".strip()
    crate.license = entity(licence, "CreativeWork", name=f"The licence at {licence}")
    software = entity(
        "#fedloom",
        "CreativeWork",
        name=references.TITLE,
        version=environment.VERSION,
        license="https://spdx.org/licenses/Apache-2.0",
    )
    for path, properties in _parts(stage, facts):
        (crate.add_dataset if path.endswith("/") else crate.add_file)(
            dest_path=path, properties=properties
        )
    cited, mentioned = _cited(references.named(facts), entity)
    # A crate may cite what has an address; the others are cited by what is mentioned.
    crate.root_dataset["citation"] = [work for work in cited if not work.id.startswith("#")]
    crate.root_dataset["mentions"] = [software, *mentioned]
    crate.metadata.write(stage)


def _parts(stage: Path, facts: Facts) -> Iterator[tuple[str, dict[str, str]]]:
    """By path, what each file of the crate is; runs and code are folders, which end in a slash."""
    yield "code/", {"name": "the code that made the runs"}
    rows = {row["run"]: row for row in facts.runs.to_dict("records")}
    for path in sorted((stage / "runs").iterdir()):
        row = rows[path.name]
        told = [f"{row['title']}, seed {row['seed']}", row["point"], row["state"]]
        yield f"runs/{path.name}/", {"name": ", ".join(filter(None, told))}
    for path in sorted(stage.rglob("*")):
        inner = path.relative_to(stage)
        if path.is_file() and inner.parts[0] not in ("code", "runs"):
            kind = TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "text/plain"
            yield inner.as_posix(), {"name": path.name, "encodingFormat": kind}


def _cited(named: list[Documentation], entity: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
    """Entities of all works that are cited, and of all that cites them."""
    works = references.together(said.citation for said in named)
    articles = {
        work.same: entity(
            _address(work),
            "ScholarlyArticle",
            name=work.title,
            creditText=f"{work.authors}. {work.title}. {work.venue} {work.year}.",
            datePublished=work.year,
        )
        for work in works
    }
    mentioned = [
        entity(
            f"#{said.kind} {said.name}".replace(" ", "-"),
            "CreativeWork",
            name=f"{said.kind} {said.name}",
            description=said.summary,
            citation=[articles[work.same] for work in references.works(said.citation)],
            **_access(said),
        )
        for said in named
    ]
    return [*articles.values()], mentioned


def _address(work: Work) -> str:
    if work.doi:
        return f"https://doi.org/{work.doi}"
    return f"https://arxiv.org/abs/{work.arxiv}" if work.arxiv else f"#{work.key}"


def _access(said: Documentation) -> dict[str, Any]:
    """Where a data set comes from."""
    if said.kind != "data set":
        return {}
    target = registry.find(said.kind, said.name, Location(said.name)).target
    addresses = [source.url for source in getattr(target, "sources", ()) if source.url]
    terms = "Not in this crate. Its publisher says under which licence it may be used."
    return {
        "url": [url for url in addresses if url.startswith("http")],
        "conditionsOfAccess": terms,
    }
