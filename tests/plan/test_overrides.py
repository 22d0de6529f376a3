"""Keys of a study on the command line: they mean what they would mean in its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planning import STUDY, write_config, write_study

from fl.base.errors import ConfigError, ConfigErrors
from fl.cli import main
from fl.plan import overrides, plan, plan_files

METHODS = {"fedavg": None, "fedprox": {"mu": [0.1, 1]}, "own": {"method": "fedavg", "lr": 0.5}}

CHANGES: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a key of training by its name": (
        ["rounds=2", "lr=1e-2"],
        {"training": {**STUDY["training"], "rounds": 2, "lr": 0.01}},
    ),
    "a list instead of a value": (
        ["training.lr=[0.1, 0.2]"],
        {"training": {**STUDY["training"], "lr": [0.1, 0.2]}},
    ),
    "a value instead of a grid": (
        ["methods.fedprox.mu=0.5"],
        {"methods": {**METHODS, "fedprox": {"mu": 0.5}}},
    ),
    "a key of an entry without keys": (
        ["methods.fedavg.momentum=0.5"],
        {"methods": {**METHODS, "fedavg": {"momentum": 0.5}}},
    ),
    "a new entry": (
        ["methods.ditto={lam: 0.1}"],
        {"methods": {**METHODS, "ditto": {"lam": 0.1}}},
    ),
    "other methods": (["methods=[local, fedavg]"], {"methods": ["local", "fedavg"]}),
    "a key of an item of a list": (
        ["partitions.dirichlet.alpha=0.7"],
        {"partitions": [{"dirichlet": {"clients": 4, "alpha": 0.7, "min_samples": 5}}]},
    ),
    "seeds and a title": (["seeds=2", "title=On, or off, 0=1"], {"seeds": 2, "title": "any"}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_config(tmp_path, {"methods": METHODS})


def runs(folder: Path, *words: str) -> tuple[str, set[str]]:
    """The name of the study, and its runs."""
    [name] = overrides.resolve(folder, ["tiny", *words])
    return name, {*plan.make(folder, [name], checked=False).runs}


@pytest.mark.parametrize("case", CHANGES)
def test_an_override_means_what_its_key_means_in_the_file(case: str, folder: Path) -> None:
    words, keys = CHANGES[case]
    before = (folder / "studies" / "tiny.yaml").read_bytes()
    name, overridden = runs(folder, *words)
    assert name != "tiny" and (folder / "studies" / "tiny.yaml").read_bytes() == before
    write_study(folder.parent, {"methods": METHODS, **keys})
    assert overridden == runs(folder)[1]
    assert overrides.resolve(folder, ["tiny", *words]) == ["tiny"] or "title" in keys
    assert not [path for path in folder.rglob("*") if "," in path.name]


def test_names_are_short_and_are_read_as_words(folder: Path) -> None:
    words = ["training.rounds=2", "methods.fedprox.mu=[0.5, 1.0]", "lr=0.1"]
    [name] = overrides.resolve(folder, ["tiny", *words])
    assert name == "tiny,lr=0.1,methods.fedprox.mu=[0.5,1.0],rounds=2"
    assert overrides.resolve(folder, [str(name)]) == [name]
    assert overrides.resolve(folder, ["tiny", *reversed(words)]) == [name]
    assert runs(folder, *words)[1] == {*plan.make(folder, [str(name)], checked=False).runs}
    draft = overrides.read_draft(folder, name, overrides.COMMAND_LINE)
    assert "rounds=2 (file: 6)" in draft.notes[0] and "own" in draft.notes[1]
    assert overrides.resolve(folder, ["rounds=2"]) == ["tiny,rounds=2"]
    overrides.check_name(name)


@pytest.mark.parametrize(
    "word", ["title=a/b", "title=a.runs", f"title={'long' * 30}", "best={a: 1}"]
)
def test_what_no_file_can_be_named_by_is_hashed(word: str, folder: Path) -> None:
    [name] = overrides.resolve(folder, ["tiny", word])
    assert name.startswith("tiny,overrides=") and len(name) < 40
    [other] = overrides.resolve(folder, ["tiny", word, "rounds=2"])
    assert name != other
    overrides.check_name(name)
    with pytest.raises(ConfigError) as error:
        overrides.resolve(folder, [str(name)])
    assert error.value.location.key == "overrides"


def test_an_override_that_changes_nothing_leaves_the_study(folder: Path) -> None:
    same = ["rounds=6", "methods.fedprox.mu=[0.1, 1]"]
    assert overrides.resolve(folder, ["tiny", *same]) == ["tiny"]
    assert overrides.resolve(folder, ["tiny", "rounds=6", "lr=1"]) == ["tiny,lr=1"]


MISTAKES: dict[str, tuple[list[str], str, str]] = {
    "no =": (["rounds", "5"], "unknown study 'rounds'", "rounds=VALUE"),
    "spaces around =": (["lr", "=", "0.1"], "'='", "lr=0.1"),
    "a space before =": (["lr", "=0.1"], "'=0.1'", "lr=0.1"),
    "a space behind =": (["lr=", "0.1"], "'lr='", "lr=0.1"),
    "spaces in quotes": (["lr = 0.1"], "'lr = 0.1'", "lr=0.1"),
    "an unknown key": (["rouns=5"], "rouns=5: rouns: unknown key", "'rounds'"),
    "a key of a method": (["mu=0.3"], "mu=0.3: mu: unknown key", "methods.fedprox.mu=0.3"),
    "a key of a partition": (["alpha=0.3"], "alpha=0.3: alpha:", "partitions.dirichlet.alpha=0.3"),
    "names without brackets": (["methods=fedavg,ditto"], "methods:", "'methods=[fedavg,ditto]'"),
    "numbers without brackets": (["batch_size=16,32"], "batch_size:", "'batch_size=[16,32]'"),
    "a key that nothing has": (["foo=1"], "foo=1: foo: unknown key 'foo'", "docs/reference"),
    "entries without the baseline": (
        ["baseline=fedavg", "methods=[local]"],
        "methods=[local]: methods: has no entry 'fedavg'",
        "baseline=local",
    ),
    "a key of another level": (["device=cpu"], "device=cpu: device", "`execution`"),
    "a seed": (["seed=1"], "seed=1: seed: unknown key", "--only seed"),
    "a model": (["model=mlp"], "model=mlp: model: unknown key", "--only model"),
    "a list without quotes": (
        ["methods.fedprox.mu=[0.1,", "1]"],
        "'methods.fedprox.mu=[0.1,'",
        "'methods.fedprox.mu=[0.1, 1]'",
    ),
    "a list without its end": (["lr=[0.1"], "'lr=[0.1' has no closing bracket", "'lr=[0.1]'"),
    "a wrong type": (["lr=fast"], "lr=fast: lr: is 'fast'", "Allowed"),
    "a wrong item": (["seeds=[0, x]"], "seeds=[0,x]: seeds.1: is 'x'", "Allowed"),
    "an unknown key of a method": (
        ["methods.fedprox.nu=1"],
        "methods.fedprox.nu=1: methods.fedprox.nu: unknown key 'nu'",
        "'mu'",
    ),
    "a method that is not there": (
        ["methods.ditto.lam=1"],
        "methods.ditto.lam=1: methods.ditto.lam: unknown name 'ditto'",
        "'methods.ditto={lam: VALUE}'",
    ),
    "a wrong key of a partition": (
        ["partitions.dirichlet.alpha=-1"],
        "partitions.dirichlet.alpha=-1: partitions.dirichlet.alpha: is -1",
        "> 0",
    ),
    "a partition that is not there": (
        ["partitions.dirichlett.alpha=1"],
        "unknown name 'dirichlett'",
        "'dirichlet'",
    ),
    "a key of a number": (["lr.start=1"], "lr.start=1: lr.start: training.lr is 0.05", ""),
    "a key twice": (["lr=1", "training.lr=2"], "training.lr=2: training.lr", "lr=1"),
    "a key and a part of it": (["training={lr: 1}", "rounds=2"], "rounds=2: rounds", "training"),
    "a number with two readings": (["rounds=010"], "rounds=010: rounds: line 1: 010", "10"),
    "no YAML": (["title='a"], "title='a: title: is not valid YAML", ""),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_told_at_the_word(case: str, folder: Path) -> None:
    words, message, advice = MISTAKES[case]
    with pytest.raises(ConfigError) as error:
        plan.make(folder, overrides.resolve(folder, ["tiny", *words]))
    told = error.value.errors[0] if isinstance(error.value, ConfigErrors) else error.value
    assert message in str(told) and advice in str(told)


def test_an_override_that_reaches_no_method_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path, {"methods": {"fedavg": {"lr": 0.5}}})
    with pytest.raises(ConfigError) as error:
        runs(folder, "lr=0.1")
    assert str(error.value.location) == "lr=0.1: lr"
    assert "methods.fedavg.lr=0.1" in error.value.advice


def test_a_list_with_two_items_of_a_name_is_set_as_a_whole(tmp_path: Path) -> None:
    partitions = [{"dirichlet": {"clients": 4, "alpha": alpha}} for alpha in (0.5, 5.0)]
    folder = write_config(tmp_path, {"partitions": partitions})
    with pytest.raises(ConfigError) as error:
        overrides.resolve(folder, ["partitions.dirichlet.alpha=1"])
    assert error.value.location.key == "partitions.dirichlet.alpha"


def test_an_alias_in_the_file_keeps_its_other_places(folder: Path) -> None:
    path = folder / "studies" / "tiny.yaml"
    text = path.read_text().partition("methods:")
    keys = "methods: {a: &keys {method: fedprox, mu: 1}, b: *keys}\n"
    path.write_text(text[0] + keys + "".join(text[2][text[2].index("models:") :]))
    [name] = overrides.resolve(folder, ["methods.a.mu=2"])
    methods = overrides.check_study(folder, name, overrides.COMMAND_LINE).study.methods
    assert (methods["a"]["mu"], methods["b"]["mu"]) == (2, 1)


def test_snakemake_plans_the_words_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = plan.read_index(folder, ["tiny", "rounds=2"])
    [name] = index.studies
    assert name == "tiny,rounds=2"
    path = plan_files.index_file(index.settings.results)
    written = path.stat().st_mtime_ns
    assert plan.read_index(folder, ["tiny,rounds=2"]) == index
    assert path.stat().st_mtime_ns == written
    for command in ("status", "plan", "show", "report"):
        assert main.main([command, "tiny", "--config", str(folder), "rounds=2"]) == 0
    said = capsys.readouterr().out
    assert "plan of tiny,rounds=2" in said and "tiny,rounds=2.html" in said
    assert main.main(["show", name, "--planned", "--config", str(folder)]) == 0
    assert main.main(["show", "tiny", "other", "--config", str(folder)]) == 1


def test_the_config_can_name_a_study_with_overrides(tmp_path: Path) -> None:
    folder = write_config(tmp_path, settings={"studies": ["tiny", "tiny,rounds=2"]})
    assert [*plan.make(folder, checked=False).studies] == ["tiny", "tiny,rounds=2"]
    names = overrides.resolve(folder, ["lr=0.1"])
    assert names == ["tiny,lr=0.1", "tiny,lr=0.1,rounds=2"]


@pytest.mark.parametrize(
    "words", [["--lr", "0.1"], ["--lr=0.1"], ["--only", "seed=0", "--lr", "0.1"]]
)
def test_an_option_in_place_of_a_word_is_told_as_a_word(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main(["plan", "tiny", "--config", str(folder), *words])
    assert "lr=0.1" in capsys.readouterr().err.partition("Try:")[2]
    with pytest.raises(SystemExit):
        main.main(["plan", "tiny", "--config", str(folder), "--cores", "1"])
    assert "Try:" not in capsys.readouterr().err
