"""The notebook of the docs, cell by cell."""

from __future__ import annotations

import json
import linecache
import shutil
import sys
import types
from pathlib import Path

import matplotlib
import planning
import pytest

from fl.base import plugins

NOTEBOOK = planning.ROOT / "docs" / "guide" / "notebook.ipynb"


def test_the_notebook_runs_and_says_what_its_names_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_roots", dict(plugins.roots()))
    matplotlib.use("agg")
    shutil.copytree(planning.ROOT / "config", "config")
    names = types.ModuleType("docs_notebook")
    monkeypatch.setitem(sys.modules, names.__name__, names)
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "outputs grow old"
            file = f"/tmp/ipykernel_1/{cell['id']}.py"
            linecache.cache[file] = (1, None, cell["source"], file)
            code = compile("".join(cell["source"]), file, "exec", dont_inherit=True)
            exec(code, vars(names))
    means = names.result.table().set_index("method")["mean"]
    assert means["ditto"] > means["fedavg"]
    assert names.own.table()["n_clients"].tolist() == [3, 3]
    assert Path("results/report/short-outputs.html").is_file()
    tests = names.result.tests()
    assert len(tests) == 3 and set(tests["verdict"]) == {"not told apart"}
    assert str(names.study).splitlines()[-2:] == ["15 missing", "folder of runs: results/runs"]
