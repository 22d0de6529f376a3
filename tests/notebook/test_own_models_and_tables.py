"""Functions that make models, grids over models of one's own, and tables in memory."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from notebooks import (
    CALL,
    cell,
)
from torch import nn

import fl
from fl.base import plugins
from fl.base.errors import FedloomError

SHORT = {key: value for key, value in CALL.items() if key != "model"} | {"rounds": 1}
WIDTH = 3


@pytest.fixture(autouse=True)
def _plugins_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders of code that these tests use are in no plan of a later test."""
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))


def models(result: fl.Result) -> list[str]:
    return [str(model) for model in result.table()["model"]]


def test_tables_have_titles_and_titles_name_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = {"mlp": {"hidden": [[3], [5]], "title": "MLP {hidden[0]}"}}
    result = fl.run(model=model, methods=["fedavg"], **SHORT)
    assert models(result) == ["MLP 3", "MLP 5"]
    for name in ("MLP 5", "mlp(hidden=[5])"):
        assert result.model("fedavg", model=name).module[1].out_features == 5
    assert result.plot(model="MLP 5")


MODULES = """
import math
from torch import nn

class Whole(nn.Module):
    def __init__(self, width=3, activation=nn.ReLU):
        super(Whole, self).__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(60, width))
        self.head = nn.Sequential(activation(), nn.Linear(width, 10))

    def forward(self, x):
        return self.head(self.layers(x))

class Shaped(Whole):
    def __init__(self, shape, classes, width=3):
        super().__init__(width)
        self.head = nn.Linear(width, classes)

class Sized(Whole):
    def __init__(self, inputs, outputs, width=3):
        super().__init__(width)
"""


def test_a_class_of_modules_is_a_model(
    cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell(cells, MODULES)
    for module in (cells.Whole, cells.Shaped):
        result = fl.run(model={"model": module, "width": [2, 3]}, methods=["fedavg"], **SHORT)
        assert [text.partition("(")[2] for text in models(result)] == ["width=2)", "width=3)"]
        network = result.model("fedavg", model=models(result)[0]).module
        assert network.layers[1].out_features == 2
    plain = fl.run(model=cells.Whole, methods=["fedavg"], **SHORT)
    assert models(plain)[0].startswith("whole-")


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ("Sized", "Try: model=lambda shape, classes: Sized(inputs=..., outputs=...)"),
        ("Sized(1, 2)", "Try: model=lambda shape, classes: Sized(inputs=..., outputs=...)"),
        ("Whole()", "Try: model=Whole"),
        ("nn.Sequential()", "Try: model=lambda shape, classes: nn.Sequential(...)"),
    ],
)
def test_a_network_that_cannot_be_taken_has_the_line_to_write(
    model: str, line: str, cells: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell(cells, MODULES)
    with pytest.raises(FedloomError) as error:
        fl.run(model=eval(model, vars(cells)), methods=["fedavg"], **SHORT)
    assert line in str(error.value) and "models.0" in str(error.value)


def test_a_function_makes_the_model_and_what_it_reads_names_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def lambda_of(width: int) -> Any:
        return lambda shape, classes: nn.Sequential(
            nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU(), nn.Linear(width, classes)
        )

    narrow = fl.run(model=lambda_of(3), methods=["fedavg"], **SHORT)
    again = fl.run(model=lambda_of(3), methods=["fedavg"], **SHORT)
    wide = fl.run(model=lambda_of(5), methods=["fedavg"], **SHORT)
    assert narrow.study.runs[0].run == again.study.runs[0].run != wide.study.runs[0].run
    assert wide.model("fedavg").module[1].out_features == 5

    def factory(shape: Any, classes: int, width: int = 2 * WIDTH) -> nn.Module:
        hidden = nn.Linear(math.prod(shape), width)
        return nn.Sequential(nn.Flatten(), hidden, nn.Linear(width, classes))

    grid = fl.run(model={"model": factory, "width": [4, 7]}, methods=["fedavg"], **SHORT)
    assert [name.partition("(")[2] for name in models(grid)] == ["width=4)", "width=7)"]
    assert grid.model("fedavg", model=models(grid)[1]).module[1].out_features == 7
    plain = fl.run(model=factory, methods=["fedavg"], **SHORT)
    assert plain.model("fedavg").module[1].out_features == 2 * WIDTH


def test_functions_that_make_no_model_of_a_shape_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    weights = np.zeros(3)
    wrong: list[tuple[Any, str]] = [
        (lambda shape: nn.Flatten(), "write a function of shape and classes"),
        (lambda shape, classes: nn.Linear(len(weights), classes), "'weights' .ndarray., which has"),
        (lambda shape, classes, w=weights: nn.Linear(3, classes), "'w' is a ndarray. Allowed: a n"),
        (
            lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1)),
            "has 1 output, but .* has 10 classes. Try: an output for each class",
        ),
        (lambda shape, classes: nn.Unflatten(1, (6, 10)), r"a sample are \[.*\]. Allowed: \[10\]"),
        (lambda shape, classes: None, "returns None. Allowed: a torch.nn.Module. Try: write `ret"),
        (
            lambda shape, classes: nn.Flatten,
            r"returns the class Flatten\. .* Try: `Flatten\(",
        ),
    ]
    for model, problem in wrong:
        with pytest.raises(FedloomError, match=problem):
            fl.run(model=model, methods=["fedavg"], **SHORT)


def test_a_grid_over_a_model_of_a_cell(cells: Any) -> None:
    result = fl.run(model={"model": cells.Net, "width": [4, 6]}, methods=["fedavg"], **SHORT)
    assert [name.partition("(")[2] for name in models(result)] == ["width=4)", "width=6)"]
    cell(cells, "small = lambda shape, classes: layers.Sequential(layers.Flatten(),\n"
         "    layers.Linear(math.prod(shape), classes))\n")  # fmt: skip
    short = fl.run(model=cells.small, methods=["fedavg"], **SHORT)
    assert models(short)[0].startswith("model-")
    cell(cells, "class Model(layers.Module):\n"
         "    def __init__(self, inputs, classes):\n"
         "        super().__init__()\n"
         "        self.only = layers.Linear(inputs, classes)\n"
         "    def forward(self, x):\n"
         "        return self.only(x.flatten(1))\n"
         "def model(shape, classes):\n"
         "    return Model(math.prod(shape), classes)\n"
         "make = lambda shape, classes: Model(math.prod(shape), classes)\n")  # fmt: skip
    for function in (cells.model, cells.make):
        named = fl.run(model=function, methods=["fedavg"], **SHORT)
        assert type(named.model("fedavg").module).__name__ == "Model"


def frame() -> pd.DataFrame:
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(120, 3)), columns=["a", "b", "c"])
    table["where"] = np.repeat(["north", "south", "west"], 40)
    return table.assign(kind=np.where(table["a"] > 0, "high", "low")).set_index(table.index + 5)


KEYS = {"label": "kind", "client": "where"}
CALL_OF_A_TABLE: dict[str, Any] = {
    **{"partition": "natural", "model": "logistic", "methods": ["fedavg"]},
    **{"rounds": 1, "batch_size": 16, "progress": False},
}


@pytest.mark.parametrize("keys", [{}, {"group": "who"}])
def test_a_client_of_too_few_rows_is_told_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = frame().assign(where=lambda table: [*table["where"][:-1], "a farm"])
    table = table.assign(who=range(len(table))) if keys else table
    said = "the number of samples of client 'a farm' is 1, where" if keys else "'a farm' is 1. Al"
    with pytest.raises(FedloomError, match=said):
        fl.run(dataset={"table": {"frame": table, **KEYS, **keys}}, **CALL_OF_A_TABLE)


def test_notes_on_data_are_warnings_at_the_line_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told once, of all draws together, also if nothing is left to train."""
    monkeypatch.chdir(tmp_path)
    table = frame().assign(again=lambda table: (table["kind"] == "high") * 1.0)
    call = CALL_OF_A_TABLE | {"partition": {"homogeneous": {"clients": 3, "seed": [0, 1]}}}
    for _ in range(2):
        with pytest.warns(fl.FedloomWarning) as told:
            fl.run(dataset={"table": {"frame": table, **KEYS}}, **call)
        [warning] = told
        assert warning.filename == __file__
        assert str(warning.message).startswith("table(label=kind, client=where, frame) / ")
        assert "seed=0) and 1 other partition: the feature 'again' stands" in str(warning.message)


def test_a_table_in_memory_is_a_data_set_that_its_content_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table, same = frame(), frame().reset_index(drop=True)
    first = fl.run(dataset={"table": {"frame": table, **KEYS}}, **CALL_OF_A_TABLE)
    moved = table.assign(a=table["a"] + 1e-9)
    other = fl.run(dataset={"table": {"path": moved, **KEYS}}, **CALL_OF_A_TABLE)
    assert first.study.runs[0].run != other.study.runs[0].run
    [path] = [path for path in Path("data/arrays").iterdir() if pd.read_parquet(path).equals(same)]
    as_file = fl.run(dataset={"table": {"path": str(path), **KEYS}}, **CALL_OF_A_TABLE)
    assert as_file.study.runs[0].run == first.study.runs[0].run
    with pytest.raises(FedloomError, match="frame: is given in addition to path"):
        both = {"frame": table, "path": str(path), **KEYS}
        fl.run(dataset={"table": both}, **CALL_OF_A_TABLE)
    for changed, said in (
        ({"a": [0.5, np.nan] * 60}, r"frame: column 'a', row 2: an empty cell is no number"),
        (
            {"kind": [*"ab", "-1"] * 40},
            r"frame: label 'kind' has -1, .* frame, column 'kind', row 3",
        ),
    ):
        with pytest.raises(FedloomError, match=rf"datasets\.0\.table: {said}") as caught:
            data = {"table": {"frame": table.assign(**changed), **KEYS}}
            fl.run(dataset=data, **CALL_OF_A_TABLE)
        assert ".parquet" not in str(caught.value)
    for alone in (table, {"table": table}):
        with pytest.raises(FedloomError, match=r"dataset: is a DataFrame\. Try: write"):
            fl.run(dataset=alone, **CALL_OF_A_TABLE)
    for dataset in (
        {"table": {"frame": table.drop(columns="where"), "label": "kind"}},
        fl.arrays(table[["a", "b"]].to_numpy(), table["kind"]),
    ):
        with pytest.raises(FedloomError, match=r"Try: name the clients by `client=`"):
            fl.run(dataset=dataset, **CALL_OF_A_TABLE)


def test_tables_by_split_are_a_published_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = frame()
    parts = {"train": table[::2], "validation": table[1::4], "test": table[3::4]}
    call = {**CALL_OF_A_TABLE, "partition": {"natural": {"test": "published", "val": 0.0}}}
    result = fl.run(dataset={"table": {"frame": parts, **KEYS}}, **call)
    assert set(result.predictions("fedavg")["sample"]) == set(range(90, 120))
    with pytest.raises(FedloomError, match="split: is given in addition to a table for each split"):
        fl.run(dataset={"table": {"frame": parts, "split": "where", **KEYS}}, **CALL_OF_A_TABLE)


def test_a_data_set_of_hugging_face_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the package datasets")
    monkeypatch.chdir(tmp_path)
    held = datasets.Dataset.from_pandas(frame(), preserve_index=False).select(range(60))
    result = fl.run(dataset={"table": {"frame": held, **KEYS}}, **CALL_OF_A_TABLE)
    assert len(result.curves()["client"].unique()) == 2
    assert "datasets" in sys.modules
    parts = datasets.DatasetDict(
        {"train": held.select(range(40)), "test": held.select(range(40, 60))}
    )
    result = fl.run(dataset={"table": {"frame": parts, **KEYS}}, **CALL_OF_A_TABLE)
    assert len(result.predictions("fedavg")) == 20


def test_a_report_names_the_clients_of_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the picture of a partition; drawn clients have numbers alone."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    wards = ["north", "south", "west wing"]
    frame = pd.DataFrame(rng.normal(size=(90, 3)), columns=["a", "b", "c"])
    frame["ward"], frame["kind"] = np.repeat(wards, 30), np.tile(["x", "y", "z"], 30)
    table = {"table": {"frame": frame, "label": "kind", "client": "ward"}}
    call = {**SHORT, "dataset": table, "model": "mlp", "methods": ["fedavg"]}
    shown = []
    for scheme in ("natural", {"homogeneous": {"clients": 3}}):
        page = fl.run(**{**call, "partition": scheme}).report().read_text()
        shown.append([name for name in wards if name in page])
    assert shown == [wards, []]
