"""Runs that were trained before their code was certified are found under their new names."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import planning
import pytest

from fl.base import arithmetic, files, identity, syntax
from fl.base.dataclass_json import as_json
from fl.cli import main
from fl.plan import certification, plan
from fl.plan.bundle import Run
from fl.plan.config import Settings
from fl.store.store import Store

METHODS = {
    "fedavg": None,
    "falling": {"method": "fedavg", "schedule": "cosine"},
    "tuned": {"method": "finetune", "start": "fedavg"},
}
Members = dict[str, Run]


def forget() -> None:
    for cached in (
        *(identity._code, identity._files, identity._opened_files),
        *(identity.read_certified, certification.certified_hashes),
    ):
        cached.cache_clear()


@pytest.fixture(scope="module", autouse=True)
def _each_file_is_hashed_once() -> Iterator[None]:
    """Nothing here edits Fedloom's own code, whose syntax takes a second."""
    hash_once = functools.cache(syntax.hash_code)
    with pytest.MonkeyPatch.context() as patch:
        for module in (identity, certification):
            patch.setattr(module, "hash_code", hash_once)
        yield


@pytest.fixture(autouse=True)
def numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table of certified code of the test's own."""
    monkeypatch.setattr(identity, "NUMBERS", tmp_path / "numbers.json")
    forget()
    yield
    forget()


def certify() -> None:
    certification.certify(dict.fromkeys(certification.roots(), 1))
    forget()


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A table of the code as it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "NUMBERS", tmp_path_factory.mktemp("certified") / "numbers.json")
        forget()
        certify()
        return identity.NUMBERS.read_bytes()


@pytest.fixture
def place(tmp_path: Path, certified: bytes) -> planning.Planned:
    """The tiny study, planned with code that nobody has certified."""
    content = files.parse_json(certified)
    for root in ("core", "data", "method fedavg"):
        content["hashes"][root] = "0" * 16
    # No file is certified, so that all count as edited.
    files.write_json(identity.NUMBERS, {**content, "files": {}})
    forget()
    return planning.make(tmp_path / "lab", methods=METHODS)


def planned(place: planning.Planned) -> tuple[dict[str, str], Members, Settings]:
    """The run of each entry, and the runs and settings of the plan."""
    made = plan.make(place.root / "config", checked=False)
    return {run.method: run.run for run in made.studies["tiny"].runs}, made.runs, made.settings


def write_bundles(place: planning.Planned) -> None:
    """Write the bundles of the plan as it is now for `Planned.train`."""
    made = plan.make(place.root / "config", checked=False)
    for run in made.studies["tiny"].runs:
        files.write_json(place.spec(run.method), as_json(made.bundles[run.bundle]))


def test_a_run_of_edited_code_is_found_when_its_code_is_certified(place: planning.Planned):
    before, _, _ = planned(place)
    for label in METHODS:
        assert place.train(label) == 0
    plan.supply(*planned(place)[1:])
    assert place.store().runs() == sorted(before.values()), "nothing is certified yet"
    certify()
    now, members, settings = planned(place)
    assert not {*now.values()} & {*before.values()}
    plan.supply(members, settings)
    store = place.store()
    for label, run in now.items():
        record = store.record(run)
        assert record["trained_as"] == before[label] and record["code_files"] == {}
        assert record["code"]["core"] == "1" and store.verify(run) == []
        assert place.files(run) == place.files(before[label])
        assert record["execution"]["stack"] == [run]
    assert store.record(now["tuned"])["start"] == now["fedavg"]
    # Data that are prepared again, under their new id, are the data of the adopted runs.
    store.remove(now["falling"])
    write_bundles(place)
    assert place.train("falling") == 0
    assert place.files(now["falling"]) == place.files(before["falling"])
    assert main.main(["store", "verify", "--config", str(place.root / "config")]) == 0


def test_shared_code_that_is_not_certified_is_told_before_training(
    place: planning.Planned, capsys: pytest.CaptureFixture[str]
):
    def told(command: str) -> list[str]:
        capsys.readouterr()
        assert main.main([command, "--config", str(place.root / "config")]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "not certified" in line]

    for command in ("plan", "doctor"):
        [line] = told(command)
        assert "core and data (fl/" in line and "`make golden`" in line
    certify()
    assert told("plan") == told("doctor") == []


def test_runs_of_code_that_nobody_certified_are_told_by_their_state(
    place: planning.Planned, capsys: pytest.CaptureFixture[str]
):
    def told() -> list[str]:
        capsys.readouterr()
        assert main.main(["store", "ls", "--config", str(place.root / "config")]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "certified" in line]

    assert place.train("fedavg") == 0
    [run] = place.store().runs()
    [line] = told()
    assert line.startswith("1 run ")
    assert f"1 of {place.store().record(run)['versions']['fedloom']}" in line
    certify()
    assert told() == []


def test_records_are_read_once(place: planning.Planned, monkeypatch: pytest.MonkeyPatch):
    assert place.train("fedavg") == place.train("falling") == 0
    certify()
    now, members, settings = planned(place)
    read: list[str] = []
    record = Store.record

    def noted(store: Store, run: str) -> dict[str, object]:
        read.append(run)
        return record(store, run)

    monkeypatch.setattr(Store, "record", noted)
    del members[now["falling"]]  # A study that needs it comes later.
    plan.supply(members, settings)
    assert place.store().has(now["fedavg"]) and not place.store().has(now["falling"])
    read.clear()
    plan.supply(planned(place)[1], settings)
    assert place.store().has(now["falling"])
    assert len(read) == 2, "the run that is adopted, and the one that was adopted before"
    read.clear()
    plan.supply(planned(place)[1], settings)
    assert read == [now["falling"]], "it is new in the store; `tuned` is missing"
    plan.supply(planned(place)[1], settings)
    assert read == [now["falling"]]


def test_a_run_with_the_numbers_of_before_is_not_taken_for_one_of_a_later_version(
    place: planning.Planned,
):
    """An edit that changes the numbers of one schedule is certified, taken back, and made again."""
    certify()
    content = files.parse_json(identity.NUMBERS.read_bytes())
    core, risen = content["hashes"]["core"], "training.schedule=cosine"
    content["versions"][risen] = 2
    content["hashes"]["core"] = "1" * 16
    content["former_hashes"] = {"core": {core: [risen]}}
    files.write_json(identity.NUMBERS, content)
    forget()
    write_bundles(place)
    for label in METHODS:
        assert place.train(label) == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "root_hash", lambda root: content["hashes"][root])
        forget()
        now, members, settings = planned(place)
        plan.supply(members, settings)
    assert {label for label in now if place.store().has(now[label])} == {"fedavg", "tuned"}


def test_a_run_of_code_that_nobody_certified_is_adopted_only_if_somebody_says_so(
    place: planning.Planned, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    before, _, _ = planned(place)
    for label in METHODS:
        assert place.train(label) == 0
    hashes = files.parse_json(identity.NUMBERS.read_bytes())["hashes"] | {"core": "2" * 16}
    monkeypatch.setattr(identity, "root_hash", lambda root: hashes[root])
    forget()
    now, members, settings = planned(place)
    plan.supply(members, settings)
    assert place.store().runs() == sorted(before.values())

    def said(*words: str) -> str:
        assert main.main(["store", "adopt", "--config", str(place.root / "config"), *words]) == 0
        return capsys.readouterr().out

    text = said()
    assert all(run in text for run in before.values()) and "recompute RUN --anyway" in text
    assert "3 runs of other code" in text and len(place.store().runs()) == 3
    assert "2 runs to adopt: core: code that was never certified; method fedavg: " in text
    assert "the run that it starts from: method fedavg: " in text and "left out" not in text
    assert "1 run adopted" in said("--yes", before["falling"])
    assert "2 runs adopted" in said("--yes")
    for label, run in now.items():
        assert place.store().record(run)["trained_as"] == before[label]
    assert place.store().record(now["tuned"])["start"] == now["fedavg"]
    assert "0 runs of other code" in said()


def rise(root: str, place: planning.Planned, **former_hashes: dict[str, list[str]]) -> None:
    """Give a root the version 2, as `make golden` does where numbers differ."""
    content = files.parse_json(identity.NUMBERS.read_bytes())
    content["versions"][root] = 2
    files.write_json(identity.NUMBERS, content | {"former_hashes": former_hashes})
    forget()


def adopt(
    place: planning.Planned, capsys: pytest.CaptureFixture[str], *words: str, status: int = 0
) -> str:
    capsys.readouterr()
    command = ["store", "adopt", "--config", str(place.root / "config"), *words]
    assert main.main(command) == status
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("root", "labels"),
    [
        ("method fedprox", {"fedprox", "tuned"}),
        ("training.schedule=cosine", {"falling"}),
        ("data", {"fedprox", "tuned", "falling"}),
        ("partition scheme dirichlet", {"fedprox", "tuned", "falling"}),
        ("core", {"fedprox", "tuned", "falling"}),
    ],
)
def test_runs_of_an_earlier_version_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], root: str, labels: set[str]
):
    """A run that starts from one with other numbers has other numbers as well."""
    certify()
    methods = {
        "fedprox": {"mu": 0.5},
        "falling": {"method": "fedavg", "schedule": "cosine"},
        "tuned": {"method": "finetune", "start": "fedprox"},
    }
    place = planning.make(tmp_path / "lab", methods=methods)
    for label in methods:
        assert place.train(label) == 0
    before, _, _ = planned(place)
    rise(root, place)
    now, _, _ = planned(place)
    assert {label for label in now if now[label] != before[label]} == labels
    for words in ((), ("--yes",)):
        text = adopt(place, capsys, *words)
        assert f"{root}: version 1, now 2" in text and "left out" in text
        assert len(text.splitlines()) <= 6
        assert place.store().runs() == sorted(before.values())
    run = before[min(labels)]
    assert "0 runs adopted, 1 left out" in adopt(place, capsys, "--yes", run, status=1)


def test_a_hash_from_before_a_version_rose_is_left_out(
    place: planning.Planned, capsys: pytest.CaptureFixture[str]
):
    """Of the runs under the hash of edited code, those whose numbers changed when it was certified
    anew are left out, and the others are found without a command."""
    before, _, _ = planned(place)
    for label in METHODS:
        assert place.train(label) == 0
    former = place.store().record(before["fedavg"])["code"]["core"]
    certify()
    content = files.parse_json(identity.NUMBERS.read_bytes())
    content["hashes"]["core"] = "1" * 16
    files.write_json(identity.NUMBERS, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(identity, "root_hash", lambda root: content["hashes"][root])
        rise("training.schedule=cosine", place, core={former: ["training.schedule=cosine"]})
        now, members, settings = planned(place)
        text = adopt(place, capsys, "--yes")
        assert "1 run left out" in text and "training.schedule=cosine: before version 2" in text
        plan.supply(members, settings)
        assert not place.store().has(now["falling"])
        assert place.store().has(now["fedavg"])


def test_a_hash_of_before_a_rise_stays_known_as_such(place: planning.Planned):
    """Also that of code which itself did not change, as the shared code did."""
    certify()
    before = identity.read_certified()
    versions = {**before.versions, "method fedavg": 2}
    certification.certify(versions)
    former = identity.read_certified().former_hashes
    name = before.hashes["method fedavg"]
    assert former["method fedavg"][name] == ["method fedavg"]
    found = certification.find_doubt("method fedavg", name, ["method fedavg"])
    assert found is not None and found.is_change
    assert certification.equal_names("method fedavg", ["method fedavg"]) == ["2"]
    certification.certify(versions)
    assert identity.read_certified().former_hashes == former


def test_native_runs_of_before_are_not_adopted_as_portable_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    certify()
    monkeypatch.setattr(arithmetic, "current", lambda: arithmetic.NATIVE)
    training = {**planning.STUDY["training"], "arithmetic": "native"}
    place = planning.make(tmp_path / "lab", training=training)
    [native] = place.runs("fedavg")
    # As a run of before, whose spec lacks the key.
    place.change("fedavg", lambda content: content["runs"][0]["spec"]["training"].pop("arithmetic"))
    assert place.runs("fedavg") == [native] and place.train("fedavg") == 0
    planning.write_study(place.root, {})
    now, members, settings = planned(place)
    assert now["fedavg"] != native
    assert "0 runs of other code" in adopt(place, capsys, "--yes")
    plan.supply(members, settings)
    assert place.store().runs() == [native]


def test_a_damaged_run_is_named_and_found_once_it_is_whole(
    place: planning.Planned, caplog: pytest.LogCaptureFixture
):
    [run] = place.runs("fedavg")
    assert place.train("fedavg") == 0
    path = place.root / "runs" / run / "metrics.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    certify()
    now, members, settings = planned(place)
    with caplog.at_level(logging.WARNING):
        plan.supply(members, settings)
    assert f"{run} cannot be adopted as {now['fedavg']}" in caplog.text
    path.write_bytes(content)
    plan.supply(members, settings)
    assert place.store().has(now["fedavg"])
