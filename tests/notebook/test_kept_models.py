"""Models to keep: from raw inputs, saved, loaded where nothing is known of the study, exported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from notebooks import CALL
from PIL import Image

import fl
from fl.api.training import Training
from fl.base import fields
from fl.base.errors import FedloomError, Location
from fl.base.registry import component_of
from fl.cli import main
from fl.data.readers.raw_inputs import Input
from fl.engine.assembly import make_network
from fl.notebook.model import Card, Model

SHORT = {key: CALL[key] for key in ("seeds", "batch_size", "lr", "progress")} | {"rounds": 2}
RULES = ("fedrod", "ifca", "pfedfda", "fedem")
"""Methods whose prediction is more than a pass of one network; two have a memory of samples."""
RELOAD = """
import json, sys
from pathlib import Path
import fl
told = {}
for folder, file in json.loads(sys.argv[1]).items():
    model = fl.load_model(folder)
    raw = Path(file)
    if raw.suffix == ".txt":
        raw = raw.read_text().split()
    values = model.predict(raw) if model.card.task == "regression" else model.predict_proba(raw)
    told[folder] = values.tolist()
assert "fl.runner.job" not in sys.modules and not Path("results").exists()
print(json.dumps(told))
"""
"""Predictions of saved models for files of raw samples, in a process of its own."""


@dataclass
class Kept:
    """A result with its raw samples, a frame or paths, and its methods."""

    result: fl.Result
    raw: Any
    methods: tuple[str, ...]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kept]]:
    """Trained models of a table, of numbers to predict, of texts and of images in files."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield {
            "table": wine(),
            "regression": patients(),
            "text": reviews(),
            "images": pictures(folder),
        }


def wine() -> Kept:
    draws = np.random.default_rng(0)
    frame = pd.DataFrame(draws.normal(size=(120, 2)), columns=["hue", "ash"])
    frame["colour"] = np.where(frame["hue"] > 0, "red", "white")
    frame["made"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(frame.index, unit="D")
    frame["grape"] = np.where(frame["hue"] + frame["ash"] > 0, "barolo", "barbera")
    frame["site"] = [f"site-{number % 4}" for number in frame.index]
    frame.loc[3, "ash"] = np.nan
    keys = {"label": "grape", "client": "site", "categorical": ["colour"], "dates": ["made"]}
    methods = ("ditto", "fedavg", *RULES, "knn-per")
    table = {"table": {"frame": frame, "missing": "mean", **keys}}
    model = {"mlp": {"hidden": [5]}}
    entries = [*methods[:-1], {"knn-per": {"start": "fedavg"}}]
    result = fl.run(
        dataset=table, partition="natural", model=model, methods=entries, **SHORT, name="wine"
    )
    return Kept(result, frame, methods)


def patients() -> Kept:
    draws = np.random.default_rng(1)
    frame = pd.DataFrame(draws.normal(size=(90, 3)), columns=["age", "bmi", "bp"])
    frame["dose"] = 100 + 30 * frame["bmi"] + draws.normal(size=90)
    frame["clinic"] = frame.index % 3
    table = {"table": {"frame": frame, "target": "dose", "client": "clinic"}}
    result = fl.run(
        dataset=table, partition="natural", model="mlp", methods=["fedavg"], **SHORT, name="dose"
    )
    return Kept(result, frame, ("fedavg",))


def reviews() -> Kept:
    words = {"good": ["good", "great", "fine", "superb"], "bad": ["bad", "awful", "poor", "sad"]}
    draws = np.random.default_rng(2)
    rows = [
        {"review": " ".join([*draws.choice(words[mood], 4), f"{n}"]), "mood": mood, "who": n % 3}
        for n in range(60)
        for mood in words
    ]
    keys = {"label": "mood", "client": "who", "text": ["review"], "length": 6, "vocabulary": 9}
    result = fl.run(
        dataset={"table": {"frame": pd.DataFrame(rows), **keys}},
        partition="natural",
        model={"text-cnn": {"channels": 4, "width": 6}},
        methods=["ditto"],
        **SHORT,
        name="reviews",
    )
    return Kept(result, pd.DataFrame(rows), ("ditto",))


def pictures(folder: Path) -> Kept:
    draws = np.random.default_rng(3)
    rows = []
    (folder / "ink").mkdir()
    for number in range(90):
        dark = number % 2
        pixels = draws.integers(0, 128, (9 + number % 3, 9)) + 100 * dark
        Image.fromarray(pixels.astype("uint8")).save(folder / "ink" / f"{number}.png")
        rows.append({"path": f"{number}.png", "label": "ab"[dark], "writer": number // 30})
    pd.DataFrame(rows).to_csv("ink/ink.csv", index=False)
    images = {"images": {"path": "ink/ink.csv", "client": "writer", "pixels": 8}}
    result = fl.run(
        dataset=images, partition="natural", model="mlp", methods=["ditto"], **SHORT, name="ink"
    )
    return Kept(result, [str(folder / "ink" / row["path"]) for row in rows], ("ditto",))


def test_a_saved_model_predicts_in_a_new_process_what_the_study_predicts(
    kept: dict[str, Kept], tmp_path: Path
) -> None:
    """Labels are equal and probabilities equal to rounding, for the samples of a client."""
    files, expected = {}, {}
    for name, item in kept.items():
        for method in item.methods:
            seen = item.result.predictions(method).query("client == 1")
            client = None if method == "fedavg" else 1
            model = item.result.model(method, client=client)
            folder = str(model.save(tmp_path / f"{name}-{method}"))
            rows, file = seen["sample"], tmp_path / f"{name}.parquet"
            if isinstance(item.raw, list):
                file = file.with_suffix(".txt")
                raw = [item.raw[row] for row in rows]
                file.write_text("\n".join(raw))
            else:
                raw = item.raw.iloc[rows]
                raw.to_parquet(file)
            files[folder], told = str(file), model.predict(raw)
            if "label" in seen:
                assert told.tolist() == [model.classes[k] for k in seen["predicted"]], folder
                expected[folder] = seen.filter(like="score_").to_numpy()
            else:
                expected[folder] = seen["predicted"].to_numpy()
                assert told == pytest.approx(expected[folder])
            assert {path.name for path in Path(folder).iterdir()} == {
                "model.json",
                "model.safetensors",
            }
    command = [sys.executable, "-c", RELOAD, json.dumps(files)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for folder, values in json.loads(done.stdout).items():
        assert np.array(values) == pytest.approx(expected[folder], rel=1e-6, abs=1e-6), folder


@pytest.mark.parametrize("name", ["table", "regression", "text", "images"])
def test_an_exported_model_takes_raw_numbers_and_needs_no_fedloom(
    kept: dict[str, Kept], name: str
) -> None:
    item = kept[name]
    model = item.result.model(item.methods[0], client=0 if item.methods[0] != "fedavg" else None)
    raw = item.raw[:7]
    program = model.export().module()
    told = program(torch.from_numpy(model.features(raw))).detach().numpy()
    is_target = name == "regression"
    assert told == pytest.approx(model.predict(raw) if is_target else model.predict_proba(raw))


def test_a_rule_of_a_method_is_not_exported(kept: dict[str, Kept]) -> None:
    with pytest.raises(FedloomError, match="predicts by a rule of its method"):
        kept["table"].result.model("fedrod", client=0).export()


def test_clients_have_their_names_and_a_model_is_a_module_too(kept: dict[str, Kept]) -> None:
    result = kept["table"].result
    model = result.model("ditto", client="site-3")
    assert model.card.client == 3 and not model.training
    x, _ = result.inputs("ditto", client=3)
    seen = result.predictions("ditto").query("client == 3")
    assert torch.equal(model(x), model.module(x))
    assert model(x).argmax(1).tolist() == seen["predicted"].tolist()


def test_images_may_be_files_a_folder_bytes_or_in_memory(kept: dict[str, Kept]) -> None:
    model, paths = kept["images"].result.model("ditto", client=0), kept["images"].raw[:4]
    expected = model.predict_proba(paths)
    with_pillow = model.predict_proba([Image.open(path) for path in paths])
    assert np.array_equal(with_pillow, expected)
    assert np.array_equal(model.predict_proba([Path(p).read_bytes() for p in paths]), expected)
    assert len(model.predict(Path(paths[0]).parent)) == 90
    assert np.array_equal(model.predict_proba(model.features(paths)), expected)


def pixels(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)


MISTAKES: dict[str, tuple[str, Callable[[Any], Any], tuple[str, ...]]] = {
    "a column is missing": (
        "table",
        lambda raw: raw.rename(columns={"hue": "Hue"}),
        ("lacks 'hue' (is it 'Hue'?)", "Try: frame.rename(columns={'Hue': 'hue'})"),
    ),
    "a column is unknown": (
        "table",
        lambda raw: raw.assign(price=1.0),
        ("has 'price'", "Try: frame.drop(columns=['price'])"),
    ),
    "a category is unknown": (
        "table",
        lambda raw: raw.assign(colour="redd"),
        ("column 'colour', row 1: 'redd'", "Allowed: 'red', 'white'", "Try: 'red'"),
    ),
    "a cell is no number": (
        "regression",
        lambda raw: raw.assign(age=["old"] * 90),
        ("column 'age'", "Allowed: numbers"),
    ),
    "a cell is empty": (
        "regression",
        lambda raw: raw.assign(age=np.nan),
        ("column 'age', row 1: an empty cell", "Try: fill these cells"),
    ),
    "an array for a table": (
        "table",
        lambda raw: np.zeros((3, 4)),
        ("is a ndarray", "'hue', 'ash', 'colour', 'made'", "pd.DataFrame(x, columns="),
    ),
    "one row": ("table", lambda raw: raw.iloc[0], ("is a Series", "frame.iloc[[0]]")),
    "one text": ("text", lambda raw: "good", ("are a str", "Try: [text]")),
    "no text": ("text", lambda raw: ["good", None], ("text 1: is None",)),
    "a text without a word": ("text", lambda raw: ["good", " "], ("text 1: an empty cell",)),
    "another shape": (
        "images",
        lambda raw: pixels(2, 9, 9),
        ("x: is uint8 [2, 9, 9]", "0 to 255 [samples, 1, 8, 8]"),
    ),
    "channels last": ("images", lambda raw: pixels(2, 8, 8, 1), ("x.transpose(0, 3, 1, 2)",)),
    "one image": ("images", lambda raw: pixels(1, 8, 8), ("x[None]",)),
    "floats for pixels": (
        "images",
        lambda raw: pixels(2, 1, 8, 8) + 0.5,
        ("is float64", "(255 * x).round().astype('uint8')"),
    ),
    "colours": (
        "images",
        lambda raw: [Image.new("RGB", (8, 8))],
        ("has colours", "grey images, as in training"),
    ),
    "no file": ("images", lambda raw: ["nothing.png"], ("nothing.png", "cannot be read")),
    "nothing": ("images", lambda raw: [], ("has no images",)),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_what_is_wrong_with_raw_inputs_has_the_words_of_training(
    kept: dict[str, Kept], case: str
) -> None:
    name, wrong, texts = MISTAKES[case]
    item = kept[name]
    method = item.methods[0]
    model = item.result.model(method, client=None if method == "fedavg" else 0)
    with pytest.raises(FedloomError) as caught:
        model.predict(wrong(item.raw))
    for text in texts:
        assert text in str(caught.value)


def test_whole_numbers_are_those_of_the_data_set() -> None:
    """The pixels of `digits` go from 0 to 16, which a model sees as 0 to 1."""
    digits = Input((1, 8, 8), "uint8", {"scale": 1 / 16, "mean": 0.3, "sd": 0.4})
    for wrong, text in (
        (pixels(2, 1, 8, 8) + 0.5, "Try: (16 * x).round()"),
        (pixels(2, 1, 8, 8) + 100, "0 to 16"),
    ):
        with pytest.raises(FedloomError, match=re.escape(text)):
            digits.read(wrong, "x")


def test_what_cannot_be_asked_of_a_model_is_said(kept: dict[str, Kept], tmp_path: Path) -> None:
    result = kept["table"].result
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").touch()
    folder = result.model("fedavg").save(tmp_path / "saved")
    assert result.model("fedavg").save(folder) == folder, "a saved model is replaced"
    for wrong, text in (
        (lambda: result.model("ditto", client="site-9"), "unknown client 'site-9'"),
        (lambda: kept["images"].result.model("ditto", client="Anna"), "unknown client 'Anna'"),
        (lambda: result.model("ditto"), "give client=, a number from 0 to 3"),
        (lambda: kept["regression"].result.model("fedavg").predict_proba([]), "Try: predict"),
        (lambda: result.model("fedavg").save(tmp_path / "mine"), "is no saved model"),
        (lambda: fl.load_model(tmp_path / "nowhere"), "nowhere: does not exist"),
        (lambda: fl.load_model(tmp_path / "mine"), "has no saved model. Allowed: the folder"),
        (lambda: fl.load_model(folder, plugins=["nothing"]), "fl.load_model: plugins.0"),
    ):
        with pytest.raises(FedloomError) as caught:
            wrong()
        assert text in str(caught.value)
    tensors = folder / "model.safetensors"
    content = bytearray(tensors.read_bytes())
    content[-1] ^= 1
    tensors.write_bytes(content)
    with pytest.raises(FedloomError, match=r"model\.safetensors"):
        fl.load_model(folder)


def test_a_command_predicts_by_a_stored_run_and_by_a_saved_model(
    kept: dict[str, Kept],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    results = {name: item.result for name, item in kept.items()}
    monkeypatch.chdir(Path(results["table"].settings.results).resolve().parent)
    Path("config").mkdir(exist_ok=True)
    Path("config/config.yaml").write_text("studies: []\n")
    raw = kept["table"].raw[:5]
    raw.to_csv(tmp_path / "new.csv", index=False)
    [run] = [r.run for r in results["table"].study.runs if r.method == "ditto"]
    out = tmp_path / "told.parquet"
    store = ["--store", results["table"].settings.store, "--client"]
    asked = ["predict", run, str(tmp_path / "new.csv"), "--out", str(out), *store]
    assert main.main([*asked, "site-2"]) == 0
    model, told = results["table"].model("ditto", client=2), pd.read_parquet(out)
    assert told["predicted"].tolist() == model.predict(raw).tolist()
    assert told["share_barolo"].to_numpy() == pytest.approx(model.predict_proba(raw)[:, 1])
    assert main.main([*asked, "9"]) == 1
    for name in ("text", "images", "regression"):
        method, client = kept[name].methods[0], None if name == "regression" else 0
        results[name].model(method, client=client).save(tmp_path / name)
    (tmp_path / "new.txt").write_text("good fine\nawful sad\n")
    kept["regression"].raw[:3].to_csv(tmp_path / "dose.csv", index=False)
    capsys.readouterr()
    for name, file, head, rows in (
        ("text", tmp_path / "new.txt", "predicted,share_bad,share_good", 2),
        ("images", Path("ink"), "image,predicted,share_a,share_b", 90),
        ("regression", tmp_path / "dose.csv", "predicted", 3),
    ):
        assert main.main(["predict", str(tmp_path / name), str(file)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert (lines[0], len(lines)) == (head, rows + 1)
    for wrong, text in (
        (["text", "new.txt", "--client", "1"], "--client: is given"),
        (["text", "none.txt"], "does not exist"),
        (["text", "new.txt", "--out", "told.txt"], "--out: is told.txt"),
        (["nothing", "new.txt"], "no run ID starts with 'nothing'"),
    ):
        given = [str(tmp_path / word) if n < 2 else word for n, word in enumerate(wrong)]
        assert main.main(["predict", *given]) == 1
        assert text in capsys.readouterr().err


def test_the_page_of_the_guide_does_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "guide" / "keep.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.S | re.M):
        exec(compile(block, "keep.md", "exec"), names)
    model, wines = names["model"], names["wines"]
    assert f"# {model.predict(wines[:3])}" in page
    told = names["program"].module()(names["features"]).detach().numpy()
    assert told == pytest.approx(model.predict_proba(wines[:3]))
    assert len(torch.export.load("wine.pt2").module()(names["features"])) == 3


def test_the_model_of_a_plugin_names_the_plugin(cells: Any, tmp_path: Path) -> None:
    call = {key: value for key, value in CALL.items() if key != "model"}
    result = fl.run(model=cells.Net(width=3), methods=["fedavg"], **{**call, "rounds": 1})
    model = result.model("fedavg")
    model.save("net")
    [(component, file)] = model.card.code.items()
    plugin = Path("results/classes") / Path(file).parts[0]
    x = np.ones((2, *model.card.inputs["x"].shape), "float32")
    asked = "import fl, sys; print(fl.load_model('net', plugins=sys.argv[1:]).predict_proba({}))"
    asked = asked.format("__import__('numpy').ones((2, 60), 'float32')")
    runs = [
        subprocess.run(
            [sys.executable, "-c", asked, *given], capture_output=True, text=True, check=False
        )
        for given in ((), (str(plugin),))
    ]
    assert component.startswith("model net-") and f"is the code of {file}" in runs[0].stderr
    assert f"plugins=['.../{plugin.name}']" in runs[0].stderr
    assert runs[1].stdout.strip() == str(model.predict_proba(x)), runs[1].stderr


def untrained(card: Card) -> Model:
    """A model with its first weights."""
    shapes = {name: item.shape for name, item in card.inputs.items()}
    _, component = component_of("model", card.model)
    shape: Any = shapes.get("x", shapes)
    network = make_network(
        lambda: component.build(shape, len(card.classes)), Training(**card.training)
    )
    return Model(card, {"variables": network.init(0), "memory": {}, "frozen": {}})


@pytest.mark.parametrize("kind", ["masks", "several inputs"])
def test_masks_and_several_inputs(kind: str, tmp_path: Path) -> None:
    normalisation = {"scale": 1 / 255, "mean": [0.4], "sd": [0.2]}
    image = Input((1, 16, 16), "uint8", normalisation)
    series = Input((2, 5), "float64", {"scale": 1.0, "mean": [1.0, 2.0], "sd": [3.0, 4.0]})
    location = Location("the test")
    settled = Training.settle(fields.parse(Training, {"rounds": 1}, location), location)
    card = Card(
        run="run",
        title="a title",
        stage="global",
        client=None,
        task="segmentation",
        classes=("background", "organ"),
        target=(0.0, 1.0),
        model={"name": "unet", "width": 2, "levels": 2, "norm": "batch"},
        training=settled,
        inputs={"x": image},
    )
    raw: Any = np.random.default_rng(0).integers(0, 255, (3, 1, 16, 16)).astype("uint8")
    if kind != "masks":
        card = replace(
            card,
            task="classification",
            model={
                **{"name": "fusion", "features": 4, "channels": [3, 4], "kernel": 3},
                **{"hidden": 5, "classifier": "shared"},
            },
            inputs={"left": series, "right": series},
        )
        raw = {name: np.random.default_rng(1).normal(size=(3, 2, 5)) for name in ("left", "right")}
    model = untrained(card)
    loaded = fl.load_model(model.save(tmp_path / "saved"))
    assert np.array_equal(loaded.predict_proba(raw), model.predict_proba(raw))
    assert loaded.predict(raw).shape == ((3, 16, 16) if kind == "masks" else (3,))
    features = model.features(raw)
    tensors: Any = torch.from_numpy(features) if kind == "masks" else None
    if isinstance(features, dict):
        tensors = {name: torch.from_numpy(x) for name, x in features.items()}
        with pytest.raises(FedloomError, match="a dictionary of left, right"):
            model.predict(raw["left"])
        with pytest.raises(FedloomError, match="3 of left, 2 of right"):
            model.predict({**raw, "right": raw["right"][:2]})
    told = model.export().module()(tensors).detach().numpy()
    assert told == pytest.approx(model.predict_proba(raw), abs=1e-6)
