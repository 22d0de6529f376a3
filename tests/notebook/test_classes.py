"""Classes of a notebook: named by their source, written down as plugins, or refused."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import planning
import pytest
import torch
from notebooks import CALL, CELLS, cell

import fl
from fl.base.errors import FedloomError
from fl.notebook import source
from fl.plan import plan
from fl.store.store import Store

FROZEN = """
import random
import numpy
import torch

class Layers(layers.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.classifier = layers.Linear(5, classes)
        self.projection = layers.Linear(inputs, 6).requires_grad_(False)
        self.body = layers.Linear(6, 5)
        with torch.no_grad():
            self.body.weight.copy_(torch.from_numpy(numpy.random.randn(5, 6)) / 3)
            self.body.bias.fill_(random.random())

    def forward(self, x):
        return self.classifier(torch.relu(self.body(self.projection(x.flatten(1)))))

@dataclass(frozen=True)
class Frozen:
    \"""Layers, of which the first is frozen and the last declared first.\"""

    def build(self, shape, classes):
        return Layers(math.prod(shape), classes)
"""


def test_a_class_is_a_plugin_that_a_study_can_name(cells: Any, tmp_path: Path) -> None:
    model = {**CALL, "model": {"mlp": {"hidden": [5]}}}
    own = fl.run(methods=[cells.ShortOutputs(strength=0.0), "fedavg"], **model)
    table = own.table().set_index("method")
    assert table["mean"]["short-outputs"] == table["mean"]["fedavg"]
    assert fl.run(methods={"mine": cells.ShortOutputs}, **model).table()["mean"][0] > 0
    [package] = Path("results/classes").iterdir()
    name = package.name.replace("_", "-")
    entries = {"a": {"method": name, "strength": 0.0}, "fedavg": None}
    config = planning.write_config(
        tmp_path, {"methods": entries}, {"plugins": [str(package.absolute())]}
    )
    again = plan.make(config).studies["tiny"].runs
    assert {run.run for run in again} == {run.run for run in own.study.runs}


def test_the_title_of_a_class_is_shown(cells: Any) -> None:
    """An entry's own title comes first; two entries of a class are told apart by their names."""
    cell(cells, CELLS[2].replace('@declare("global",', '@declare("global", title="Ours (short)",'))
    methods = {
        "mine": cells.ShortOutputs(strength=0.0),
        "swept": {"method": cells.ShortOutputs, "strength": [0.0, 0.5]},
        "named": {"method": cells.ShortOutputs, "strength": 0.3, "title": "Named"},
        "fedavg": None,
    }
    own = fl.run(methods=methods, **{**CALL, "rounds": 1})
    titles = own.table().set_index("method")["title"].to_dict()
    shown = "Ours (short)"
    assert titles == {
        "mine": f"{shown} (mine)",
        "swept": f"{shown} (swept)",
        "named": "Named",
        "fedavg": "FedAvg",
    }
    assert f"{shown} (mine)" in own.report().read_text()
    untitled = fl.run(methods={"mine": methods["mine"]}, **{**CALL, "rounds": 1})
    assert {run.run for run in untitled.study.runs} < {run.run for run in own.study.runs}
    assert f"  {shown} " in str(untitled)


def test_models_terms_and_grids_may_be_classes_too(cells: Any) -> None:
    methods = {
        "swept": {"method": cells.ShortOutputs, "strength": [0.0, 0.5]},
        "short": {"method": "fedavg", "terms": {"short": cells.Short(mu=0.5)}},
    }
    call = {**CALL, "rounds": 2}
    own = fl.run(methods=methods, **{**call, "model": cells.Net(width=5)})
    plain = fl.run(methods=methods, **{**call, "model": {"mlp": {"hidden": [5]}}})
    assert own.table()["mean"].tolist() == plain.table()["mean"].tolist()
    assert {run.method: len(run.point) for run in own.study.runs} == {
        "swept": 1,
        "short": 0,
    }
    assert str(own.model("short")).count("Linear") == 2


def test_a_frozen_layer_stays_and_is_neither_sent_nor_counted(cells: Any) -> None:
    """In a stack of seeds and of clients; a second process has the same model of each run."""
    cell(cells, FROZEN)
    methods = ["fedavg", "ditto", "fedbabu", "fedrep"]
    call = {**CALL, "rounds": 2, "seeds": 2, "model": cells.Frozen(), "keep_weights": True}
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    result = fl.run(methods=methods, **call)
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before
    assert [*result.study.heads.values()] == ["classifier"]
    body, head = (6 + 1) * 5, (5 + 1) * 10
    sent = {method: body + (method != "fedrep") * head for method in methods}
    projections = []
    for run in result.study.runs:
        record = Store(Path("results/runs")).record(run.run)
        assert record["costs"]["bytes_up"] == 4 * sent[run.method]
    for method in methods:
        client = None if method in ("fedavg",) else 0
        models = [result.model(method, client=client, seed=seed).module for seed in (0, 1)]
        projections += [model.projection.weight for model in models]
        assert not torch.equal(*(model.body.weight for model in models))
    assert all(torch.equal(weight, projections[0]) for weight in projections)


def test_the_source_holds_all_that_decides_and_nothing_else(cells: Any) -> None:
    text = source.module_text(cells.ShortOutputs, "Mine.")
    assert "HALF = 0.5\n\n\ndef size(outputs):" in text
    assert "from fl.api import weighted_mean as over_samples\n" in text
    assert "Net" not in text
    assert "math" not in text
    cell(cells, "unrelated = 3\nHALF = 0.5")
    assert source.module_text(cells.ShortOutputs, "Mine.") == text
    cell(cells, "HALF = 0.25")
    assert source.module_text(cells.ShortOutputs, "Mine.") == text.replace("0.5", "0.25")


REFUSED = {
    "array": ("import numpy as np\ndata = np.zeros(3)", "return data", "variable 'data' .ndarray."),
    "own module": ("import helpers", "return helpers", "variable 'helpers' .module of your own."),
    "no source": ("f = eval('lambda: 1')", "return f", "its source cannot be found"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_name_is_refused(
    cells: Any, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helpers.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before, does, message = REFUSED[case]
    cell(cells, before)
    cell(cells, f"@declare('global')\nclass Mine:\n    def build(self, context):\n        {does}\n")
    with pytest.raises(FedloomError, match=rf"fl.run: methods.mine: .*{message}"):
        fl.run(methods=[cells.Mine()], **CALL)


def test_what_is_no_class_of_a_study_is_refused(cells: Any) -> None:
    @dataclass(frozen=True)
    class Inner:
        def build(self, shape: tuple[int, ...], classes: int) -> Any: ...

    cell(cells, "class Plain:\n    pass")
    for changes, message in (
        ({"model": Inner()}, "models.0: .*Inner: is defined inside a function"),
        ({"model": cells.Plain}, "models.0: is of the class Plain, which is no model. Try"),
        ({"methods": [np.float64]}, "methods.float64: is of the class float64, which is no method"),
        ({"methods": {"a": cells.ShortOutputs(strength=-1.0)}}, "methods.a.strength: is -1.0"),
    ):
        with pytest.raises(FedloomError, match=message):
            fl.run(**{**CALL, "methods": ["fedavg"], **changes})
