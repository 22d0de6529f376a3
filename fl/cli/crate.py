"""Export of a study as an RO-Crate: config, code, runs, tables, report and a description.

``ro-crate-metadata.json`` describes all files, see https://w3id.org/ro/crate/1.3.

::

    config/    the study, the files of the config that it reads, and a config.yaml of its own
    code/      fl and the modules of plugins, the lock file of packages, the licence
    runs/      the study's runs, a store
    results/   the study's plan, partitions, analyses, tables, report

In the folder, ``PYTHONPATH=code python -m fl report STUDY --planned`` makes the report again. Data
sets are not included; the crate cites them and has their addresses. As a plan from the config needs
a user's own files, the crate has the plan, too.
"""

from __future__ import annotations

import importlib.util
import mimetypes
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from fl import report
from fl.base import files, identity, plugins, registry
from fl.base.errors import FedloomError, Location
from fl.base.folders import partition_folder
from fl.base.registry import Documentation
from fl.base.units import quantity
from fl.cli.stores import readable
from fl.data.download import LOCK_FILE as LOCK
from fl.plan import analyses, overrides, plan, plan_files, study_files
from fl.plan.config import Execution
from fl.plan.plan import Plan
from fl.report import references
from fl.report.facts import Facts, gather
from fl.report.references import Work
from fl.runner import environment
from fl.store import import_export
from fl.store.import_export import NEW
from fl.store.store import Store

CLUSTER_KEYS = ("slurm_partition", "account", "qos", "constraint", "gpu_type")
"""Keys of `execution` that belong to one cluster."""

CODE_SUFFIXES = (".py", ".pyi")
"""Endings of the files of a plugin that a crate holds."""

MEDIA_TYPES = {".yaml": "application/yaml", ".parquet": "application/vnd.apache.parquet"}
README = """\
# {title}

{question}

A study of Fedloom {version}, with {stored} of its {runs} runs. `results/report/{name}.html` has the
results, the differences from a paper, and the references.

    python -m venv .venv
    .venv/bin/python -m pip install -r code/requirements.lock
    export PYTHONPATH=code
    .venv/bin/python -m fl store verify      # compare every file of `runs` with its checksum
    .venv/bin/python -m fl report {name} --planned   # make tables and report from `runs`
    .venv/bin/python -m fl recompute RUN     # train a run again and compare its metrics

Data sets are not included. `fedloom datasets NAME` prints the source of a data set; its publisher
decides how it may be used.
"""


ARCHIVE_SUFFIXES = (".tar", ".gz", ".tgz", ".xz", ".bz2", ".zst", ".7z", ".rar")
"""Endings of archives, other than that of a crate."""


def write(folder: Path, name: str, target: Path, licence: str) -> Iterator[str]:
    """Write the crate of a study, and return lines about its content.

    Args:
        folder: Config folder.
        name: Name of the study.
        target: New folder or new file ``*.zip``; it appears when it is complete.
        licence: Address of the licence.

    Raises:
        FedloomError: If the target exists or is named as another archive, a run is damaged, a
            package is missing, or a file cannot be written.
    """
    if target.suffix in ARCHIVE_SUFFIXES:
        raise FedloomError(f"{target}: has another archive's ending", "a folder, or a file *.zip")
    if target.exists():
        raise FedloomError(f"{target}: exists already", advice="choose another name")
    if importlib.util.find_spec("rocrate") is None:
        raise FedloomError(
            "export needs the package rocrate, which is not installed",
            advice="run `make extras`, or `pip install rocrate`",
        )
    planned = plan.read(folder, [name])
    with files.disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fedloom-") as draft:
            stage = Path(draft) / "crate"
            _code(stage, Path(draft), planned.studies[name].names)
            _config(stage / "config", folder, name, planned)
            stored = _runs(stage / "runs", name, planned)
            facts = _results(stage, name, planned)
            _readme(stage, facts, stored)
            _metadata(stage, facts, licence)
            if target.suffix == ".zip":
                stage = Path(shutil.make_archive(str(Path(draft) / "crate"), "zip", stage))
            stage.rename(target)
    yield f"contains {stored} of {quantity(len(facts.runs['run'].unique()), 'run')}"
    yield str(target)


def _code(stage: Path, draft: Path, names: Mapping[str, Sequence[str]]) -> None:
    """Copy the code.

    A plugin's folder may hold data of patients and passwords. So only its modules are copied, and
    the files that they open by name, as these decide numbers.

    Args:
        stage: Folder of the crate.
        draft: Folder for the copy of all files.
        names: Names of the study's components by kind.
    """
    copy = environment.copy_code(draft)
    roots = [identity.entry(kind, name) for kind, several in names.items() for name in several]
    opened = {path.resolve() for root in roots for path in identity.opened_files(root).values()}
    plugin_of_copy = {
        copy / name: folder for name, folder in plugins.roots().items() if folder != plugins.FL
    }

    def unneeded(folder: str, file_names: list[str]) -> list[str]:
        """Return the files of a folder of the copy that the crate does not need."""
        plugin = next((path for path in plugin_of_copy if Path(folder).is_relative_to(path)), None)
        if plugin is None:
            return []
        source = plugin_of_copy[plugin] / Path(folder).relative_to(plugin)
        files = [name for name in file_names if not (Path(folder) / name).is_dir()]
        return [
            name
            for name in files
            if Path(name).suffix not in CODE_SUFFIXES and (source / name).resolve() not in opened
        ]

    shutil.copytree(copy, stage / "code", ignore=unneeded)  # Links become files.
    if (licence := environment.ROOT / "LICENSE").is_file():
        shutil.copyfile(licence, stage / "code" / licence.name)


def _config(target: Path, folder: Path, name: str, planned: Plan) -> None:
    study = overrides.check_study(folder, name, Location(name)).study
    names = planned.studies[name].names
    sources = {cells.source for cells in study.published}
    sources |= {study.best.source} if study.best else set()
    config_files = [
        study_files.file(folder, name),
        *(folder / "methods" / f"{method}.yaml" for method in names["method"]),
        *(folder / "published" / source for source in sorted(sources)),
    ]
    for path in config_files:
        if path.is_file():
            copy = target / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    if (lock := folder / LOCK).is_file():
        locked = files.parse_json(lock.read_bytes())
        used = {key: locked[key] for key in names["data set"] if key in locked}
        files.write_json(target / LOCK, used)
    settings = planned.settings
    execution = {
        key: value
        for key, value in asdict(settings.execution).items()
        if value != getattr(Execution(), key) and key not in CLUSTER_KEYS
    }
    content = {
        "studies": [name],
        "store": "runs",
        "plugins": [f"code/{Path(plugin).resolve().name}" for plugin in settings.plugins],
        "execution": execution,
    }
    nonempty = {key: value for key, value in content.items() if value}
    text = yaml.safe_dump(nonempty, sort_keys=False)
    files.write_bytes(target / "config.yaml", text.encode())


def _runs(target: Path, name: str, planned: Plan) -> int:
    """Copy the study's stored runs, with a check of each; return their number."""
    source, store = readable(planned.settings.store), Store(target)
    target.mkdir(parents=True)
    runs = sorted({run.run for run in planned.studies[name].runs if source.has(run.run)})
    for run in runs:
        moved = import_export.copy_run(run, source, store)
        if moved.outcome != NEW:
            raise FedloomError(f"{run}: {moved.reason or moved.outcome}")
    return len(runs)


def _results(stage: Path, name: str, planned: Plan) -> Facts:
    study, results = planned.studies[name], Path(planned.settings.results)
    folders = [partition_folder(results, run.partition_id) for run in study.runs]
    folders += [analyses.folder_of(results, analysis.analysis) for analysis in study.analyses]
    for path in dict.fromkeys(folders):
        if path.is_dir():
            shutil.copytree(path, stage / "results" / path.relative_to(results))
    plan_files.write(plan_files.file_of(stage / "results", "studies", name), study)
    report.build(name, stage / "results", stage / "runs", study)
    return gather(name, stage / "results", stage / "runs", study)


def _readme(stage: Path, facts: Facts, stored: int) -> None:
    runs = len(facts.runs["run"].unique())
    text = README.format(
        title=facts.plan.title,
        question=facts.plan.question,
        name=facts.plan.study,
        version=environment.VERSION,
        stored=stored,
        runs=runs,
    )
    files.write_bytes(stage / "README.md", text.encode())


def _metadata(stage: Path, facts: Facts, licence: str) -> None:
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    crate = ROCrate()

    def entity(id: str, type_: str, **properties: Any) -> Any:
        nonempty = {key: value for key, value in properties.items() if value}
        return crate.add(ContextEntity(crate, id, {"@type": type_, **nonempty}))

    crate.name = facts.plan.title
    crate.description = f"{facts.plan.question} {facts.status}".strip()
    crate.license = entity(licence, "CreativeWork", name=f"The licence at {licence}")
    software = entity(
        "#fedloom",
        "CreativeWork",
        name=references.TITLE,
        version=environment.VERSION,
        license="https://spdx.org/licenses/Apache-2.0",
    )
    for path, properties in _file_properties(stage, facts):
        (crate.add_dataset if path.endswith("/") else crate.add_file)(
            dest_path=path, properties=properties
        )
    articles, components = _citations(references.cited_components(facts), entity)
    # The crate itself may only cite works with an address; components cite the others.
    crate.root_dataset["citation"] = [work for work in articles if not work.id.startswith("#")]
    crate.root_dataset["mentions"] = [software, *components]
    crate.metadata.write(stage)


def _file_properties(stage: Path, facts: Facts) -> Iterator[tuple[str, dict[str, str]]]:
    """Return path and description of each file; runs and code are folders, which end in a slash."""
    yield "code/", {"name": "the code that made the runs"}
    rows = {row["run"]: row for row in facts.runs.to_dict("records")}
    for path in sorted((stage / "runs").iterdir()):
        row = rows[path.name]
        words = [f"{row['title']}, seed {row['seed']}", row["point"], row["state"]]
        yield f"runs/{path.name}/", {"name": ", ".join(filter(None, words))}
    for path in sorted(stage.rglob("*")):
        inner = path.relative_to(stage)
        if path.is_file() and inner.parts[0] not in ("code", "runs"):
            guess = MEDIA_TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0]
            yield inner.as_posix(), {"name": path.name, "encodingFormat": guess or "text/plain"}


def _citations(
    components: list[Documentation], entity: Callable[..., Any]
) -> tuple[list[Any], list[Any]]:
    """Return entities of all cited works, and of all components that cite them."""
    works = references.merge_works(component.citation for component in components)
    articles = {
        work.title_key: entity(
            _address(work),
            "ScholarlyArticle",
            name=work.title,
            creditText=f"{work.authors}. {work.title}. {work.venue} {work.year}.",
            datePublished=work.year,
        )
        for work in works
    }
    mentions = [
        entity(
            f"#{component.kind} {component.name}".replace(" ", "-"),
            "CreativeWork",
            name=f"{component.kind} {component.name}",
            description=component.summary,
            citation=[articles[work.title_key] for work in references.works(component.citation)],
            **_access(component),
        )
        for component in components
    ]
    return [*articles.values()], mentions


def _address(work: Work) -> str:
    if work.doi:
        return f"https://doi.org/{work.doi}"
    return f"https://arxiv.org/abs/{work.arxiv}" if work.arxiv else f"#{work.key}"


def _access(component: Documentation) -> dict[str, Any]:
    """Return addresses and terms of a data set; {} for other components."""
    if component.kind != "data set":
        return {}
    target = registry.find(component.kind, component.name, Location(component.name)).target
    addresses = [source.url for source in getattr(target, "sources", ()) if source.url]
    terms = "Not in this crate. Its publisher decides under which licence it may be used."
    return {
        "url": [url for url in addresses if url.startswith("http")],
        "conditionsOfAccess": terms,
    }
