"""What a name holds: versions of what is certified, hashes of what is edited."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fl.base import files, identity, plugins, registry
from fl.base.errors import FedloomError
from fl.plan import certification

FILES = {
    "base/rng.py": "SEED = 1\n",
    "engine/simulate.py": '"""Rounds."""\n\nROUNDS = 2  # Two.\n',
    "data/split.py": "SHARE = 0.5\n",
    "data/datasets/digits.py": "SIDE = 8\n",
    "methods/fedavg.py": "RATE = 0.5\n",
    "methods/fedprox.py": "from fl.methods.fedavg import RATE\n\nMU = 0.1\n",
    "report/tables.py": "DIGITS = 3\n",
}
ROOTS = ("core", "data", "data set digits", "method fedavg", "method fedprox")
MINE = {
    "methods/own.py": "from ..terms import near\n\nMU = 1\n",
    "methods/other.py": "MU = 2\n",
    "terms/near.py": "LAM = 1\n",
    "terms/far.py": "LAM = 2\n",
    "scale.py": "SCALE = 1\n",
}

Named = Callable[[], dict[str, str]]


def forget() -> None:
    for cached in (
        identity._code,
        identity._files,
        identity._opened_files,
        identity.read_certified,
        certification.certified_hashes,
    ):
        cached.cache_clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small certified ``fl``, with a plugin beside it."""
    root, mine = tmp_path / "fl", tmp_path / "mine"
    for folder, texts in ((root, FILES), (mine, MINE)):
        for name, text in texts.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
    monkeypatch.setattr(plugins, "_roots", {"fl": root, "mine": mine})
    for module in (identity, registry):
        monkeypatch.setattr(module, "ROOT", root)
    monkeypatch.setattr(identity, "NUMBERS", root / "numbers.json")
    forget()
    certification.certify(dict.fromkeys(certification.roots(), 1))
    yield root
    forget()


def names(*roots: str) -> dict[str, str]:
    forget()
    return {root: identity.root_code(root) for root in roots or ROOTS}


def renamed(before: dict[str, str]) -> set[str]:
    now = names(*before)
    return {root for root in now if now[root] != before[root]}


def test_what_is_certified_is_named_by_its_version(package: Path) -> None:
    assert set(certification.roots()) == set(ROOTS)
    assert names() == dict.fromkeys(ROOTS, "1")
    certification.certify(
        {**dict.fromkeys(ROOTS, 1), "method fedprox": 3, "training.optimizer=adamw": 2}
    )
    assert names() == {**dict.fromkeys(ROOTS, "1"), "method fedprox": "3"}
    spec = {"training": {"optimizer": "adamw", "lr": 0.1}}
    assert identity.option_versions(spec) == {"training.optimizer=adamw": "2"}
    assert identity.option_versions({"training": {"optimizer": "sgd"}}) == {}


def test_a_hash_is_another_name_of_the_version_under_which_it_was_certified(package: Path) -> None:
    certified = {root: identity.root_hash(root) for root in ROOTS}
    assert certification.equal_names("core", ROOTS) == ["1", certified["core"]]
    (package / "engine/simulate.py").write_text("TURNS = 2\n")
    [edited] = names("core").values()
    assert edited not in certification.equal_names("core", ROOTS), "nobody has compared its numbers"
    certification.certify(dict.fromkeys(ROOTS, 1))
    assert certification.equal_names("core", ROOTS) == ["1", edited, certified["core"]]
    assert {edited, certified["core"]} <= certification.certified_hashes()

    # The next edit changes the numbers of FedProx: earlier code of all runs has the former ones.
    (package / "engine/simulate.py").write_text("TURNS = 1 + 1\n")
    [later] = names("core").values()
    certification.certify({**dict.fromkeys(ROOTS, 1), "method fedprox": 2})
    without = [root for root in ROOTS if root != "method fedprox"]
    assert {*certification.equal_names("core", without)} == {"1", later, edited, certified["core"]}
    assert certification.equal_names("core", ROOTS) == ["1", later]
    assert certification.equal_names("data", ROOTS) == ["1", certified["data"]]

    # Under another version, nothing of before is equal.
    (package / "engine/simulate.py").write_text("TURNS = 3\n")
    [latest] = names("core").values()
    certification.certify({**dict.fromkeys(ROOTS, 1), "method fedprox": 2, "core": 2})
    assert certification.equal_names("core", without) == ["2", latest]
    assert certification.equal_names("method own", ROOTS) == [identity.root_code("method own")]


def test_an_earlier_state_is_certified_with_the_versions_that_it_had(package: Path) -> None:
    hashes, versions = dict.fromkeys(ROOTS, "0" * 16), dict.fromkeys(ROOTS, 1)
    certification.certify({**versions, "method fedprox": 2})
    assert certification.certify_state(versions, hashes) == len(ROOTS)
    assert certification.certify_state(versions, hashes) == 0, "they are known"
    assert "0" * 16 in certification.equal_names("core", ["core", "method fedavg"])
    assert "0" * 16 not in certification.equal_names("core", ROOTS), "FedProx had version 1 there"
    assert names() == {**dict.fromkeys(ROOTS, "1"), "method fedprox": "2"}


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("engine/simulate.py", "ROUNDS = 3\n", {"core"}),
        ("engine/simulate.py", '"""Rounds of it."""\nROUNDS = (\n    2\n)\n', set()),
        ("engine/new.py", "X = 1\n", {"core"}),
        ("base/rng.py", "SEED = 2\n", {"core", "data"}),
        ("data/split.py", "SHARE = 0.4\n", {"data"}),
        ("data/datasets/digits.py", "SIDE = 9\n", {"data set digits"}),
        ("methods/fedavg.py", "RATE = 1\n", {"method fedavg", "method fedprox"}),
        ("methods/fedprox.py", FILES["methods/fedprox.py"] + "\nX = 1\n", {"method fedprox"}),
        ("report/tables.py", "DIGITS = 4\n", set()),
        ("base/units.py", "BYTE = 8\n", set()),
    ],
)
def test_an_edit_names_what_it_can_reach_by_its_hash(
    package: Path, file: str, text: str, expected: set[str]
) -> None:
    before = names()
    (package / file).write_text(text)
    assert renamed(before) == expected
    assert all(len(identity.root_code(root)) == 16 for root in expected)
    edited = identity.uncertified_files(*ROOTS)
    assert set(edited) == ({f"fl/{file}"} if expected else set())
    if file in FILES:
        (package / file).write_text(FILES[file])
        assert names() == before


def test_a_method_is_named_by_what_decides_its_numbers(package: Path) -> None:
    """Types and texts of errors rename neither code of Fedloom nor what it certified before."""
    lazy = "from __future__ import annotations\n"
    (package / "methods/fedavg.py").write_text(f"{lazy}\ndef f(x):\n    raise KeyError('a')\n")
    forget()
    certification.certify(dict.fromkeys(certification.roots(), 1))
    before = names("method fedavg", "method fedprox")
    typed = f"{lazy}\ndef f(x: int) -> None:\n    raise KeyError('b')\n"
    (package / "methods/fedavg.py").write_text(typed)
    assert renamed(before) == set() and before["method fedavg"] == "1"


def test_a_root_that_was_certified_by_another_kind_of_hash_keeps_it_as_a_name(
    package: Path,
) -> None:
    content = files.parse_json(identity.NUMBERS.read_bytes())
    content["hashes"]["core"] = "0" * 16
    files.write_json(identity.NUMBERS, content)
    forget()
    certification.certify(dict.fromkeys(certification.roots(), 1))
    assert "0" * 16 in certification.equal_names("core", ROOTS)
    assert names() == dict.fromkeys(ROOTS, "1")


NUMBERS = re.compile(r"\b(int|float|complex|Tensor|ndarray|Series|DataFrame|Generator)\b")


@pytest.mark.parametrize("name", identity.TEXT_MODULES)
def test_modules_that_decide_no_number_return_none(name: str) -> None:
    tree = ast.parse((identity.ROOT / name).read_bytes())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    returned = {node.name: ast.unparse(node.returns) for node in functions if node.returns}
    public = {key: text for key, text in returned.items() if not key.startswith("_")}
    assert not {key for key, text in public.items() if NUMBERS.search(text)}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("methods/own.py", {"method own"}),
        ("terms/near.py", {"method own"}),
        ("terms/far.py", set()),
        ("scale.py", {"method own", "method other"}),
    ],
)
def test_a_plugin_is_named_by_its_files(package: Path, file: str, expected: set[str]) -> None:
    before = names("method own", "method other")
    path = package.parent / "mine" / file
    path.write_text(path.read_text() + "MORE = 1\n")
    assert renamed(before) == expected


def edit(file: Path, text: str) -> None:
    file.write_text(file.read_text() + text)


@pytest.mark.parametrize(
    "line",
    ["import helper\n", "def f():\n    from helper import K\n", "K = __import__('helper').K\n"],
)
def test_a_plugin_that_imports_a_module_beside_it_is_refused(
    package: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(package.parent))
    (package.parent / "helper.py").write_text("K = 1\n")
    before = names("method other")
    edit(package.parent / "mine" / "methods" / "own.py", line)
    with pytest.raises(FedloomError, match=r"own.py: imports helper, which is outside .*Try: move"):
        names("method own")
    assert renamed(before) == set()
    edit(package.parent / "mine" / "scale.py", line)
    with pytest.raises(FedloomError, match=r"scale.py: imports helper"):
        names("method other")


def test_a_plugin_that_changes_the_search_for_modules_is_refused(package: Path) -> None:
    edit(package.parent / "mine" / "methods" / "own.py", "import sys\nsys.path.append('.')\n")
    with pytest.raises(FedloomError, match=r"own.py: uses sys.path"):
        names("method own")


def test_installed_modules_and_those_of_other_plugins_are_imported(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "shared.py").write_text("K = 1\n")
    monkeypatch.setattr(plugins, "_roots", {**plugins.roots(), "theirs": theirs})
    own = package.parent / "mine" / "methods" / "own.py"
    edit(own, "import math, numpy.linalg\nfrom torch import nn\nfrom theirs.shared import K\n")
    edit(own, "import missing_module\n")  # Python itself says that it does not exist.
    before = names("method own", "method other")
    (theirs / "shared.py").write_text("K = 2\n")
    assert renamed(before) == {"method own"}


@pytest.mark.parametrize(
    "line",
    [
        "W = np.load('w.npy')",
        "W = np.load(Path(__file__).parent.parent / 'w.npy')",
        "W = Path('w.npy').read_bytes()",
        "NAME = 'w.npy'\nW = open(NAME, 'rb').read()",
        "W = read_csv('w.npy')",
        "with Path('w.npy').open() as file:\n    W = file.read()",
        "W = Path('w.npy').read_text('ascii')",
        "W = archive.open('w.npy').read()",
        "import linecache\nW = linecache.getline('w.npy', 1)",
        "W = getattr(np, 'load')('w.npy')",
        "import builtins\nW = builtins.open('w.npy').read()",
        "READ = open\nW = READ('w.npy')",
        "W = [*map(np.load, ['w.npy'])]",
    ],
)
def test_a_file_that_a_method_opens_is_part_of_its_name(package: Path, line: str) -> None:
    mine = package.parent / "mine"
    head = "from pathlib import Path\nimport numpy as np\nfrom pandas import read_csv\n"
    edit(mine / "methods" / "own.py", f"{head}{line}\n")
    with pytest.raises(FedloomError, match=r"own.py: line \d+ opens a file, and no text"):
        names("method own")
    (mine / "w.npy").write_bytes(b"1")
    before = names("method own", "method other")
    assert "w.npy" in identity.uncertified_files("method own")
    (mine / "w.npy").write_bytes(b"22")
    assert identity.root_code("method own") != before["method own"], "within one process, too"
    assert renamed(before) == {"method own"}
    (mine / "w.npy").write_bytes(b"1")
    assert renamed(before) == set()


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("os.environ['A']", "the environment"),
        ("os.environ.get('A')", "the environment"),
        ("os.getenv('A')", "the environment"),
        ("getattr(os, 'environ')['A']", "the environment"),
        ("from os import environ\nW = environ['A']", "the environment"),
        ("subprocess.check_output(['ls'])", "the output of a program"),
        ("os.popen('ls').read()", "the output of a program"),
        ("os.listdir('.')", "the names of files"),
        ("glob.glob('*')", "the names of files"),
        ("sorted(Path('.').iterdir())", "the names of files"),
        ("getattr(Path('.'), 'glob')('*')", "the names of files"),
        ("getattr(os, NAME)", "what getattr takes of os"),
    ],
)
def test_what_no_name_can_hold_is_refused(package: Path, line: str, source: str) -> None:
    own = package.parent / "mine" / "methods" / "own.py"
    edit(own, f"import glob, os, subprocess\nfrom pathlib import Path\nNAME = 'environ'\n{line}\n")
    with pytest.raises(FedloomError, match=rf"own.py: line \d+ reads {source}"):
        names("method own")


@pytest.mark.parametrize(
    "line",
    [
        "open('log.txt', 'w')",
        "open('log.txt', mode='a')",
        "dict(load=1)",
        "x.open_gate()",
        "import os; os.environ['A'] = '1'; os.environ.setdefault('B', '2')",
        "import os; os.path.join('a', 'b'); os.cpu_count()",
        "open, close = x; return close - open",
        "requests = []; requests.append(x); return getattr(x, NAME)",
    ],
)
def test_code_that_reads_no_file_is_accepted(package: Path, line: str) -> None:
    edit(package.parent / "mine" / "methods" / "own.py", f"def f(x):\n    {line}\n")
    assert len(names("method own")["method own"]) == 16


def test_a_model_does_not_read_what_changes_by_itself(package: Path) -> None:
    model = package.parent / "mine" / "models" / "net.py"
    model.parent.mkdir()
    for line, source in [
        ("import time\nT = time.time()\n", "the clock"),
        ("from datetime import datetime\nT = datetime.now()\n", "the clock"),
        ("import os\nT = os.getpid()\n", "the process"),
    ]:
        model.write_text(line)
        with pytest.raises(FedloomError, match=f"net.py: line 2 reads {source}"):
            names("model net")
        identity._opened_files.cache_clear()
    edit(package.parent / "mine" / "methods" / "own.py", "import time\nT = time.time()\n")
    names("method own")


def test_a_reader_of_a_plugin_opens_files(package: Path) -> None:
    reader = package.parent / "mine" / "datasets" / "rows.py"
    reader.parent.mkdir()
    reader.write_text("def read(path):\n    return open(path).read()\n")
    assert len(names("data set rows")["data set rows"]) == 16


def test_a_file_that_nobody_touched_is_not_parsed(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(path: Path, is_own: bool = False) -> str:
        pytest.fail(f"parsed {path}")

    monkeypatch.setattr(identity, "hash_code", parse)
    assert names() == dict.fromkeys(ROOTS, "1")


def test_the_file_of_versions_is_current() -> None:
    """Whoever edits code that decides numbers runs the goldens before it is merged."""
    known = identity.read_certified()
    differing = [
        root for root in certification.roots() if known.hashes.get(root) != identity.root_hash(root)
    ]
    gone = [root for root in known.hashes if root not in certification.roots()]
    assert not differing + gone, "not certified: say `make golden`"


def test_digest_knows_types_but_not_order() -> None:
    assert identity.digest({"a": 1, "b": 2.5}) == identity.digest({"b": 2.5, "a": 1})
    assert identity.digest({"a": 1}) != identity.digest({"a": 1.0})


def test_a_name_leaves_out_the_keys_that_have_their_defaults() -> None:
    code = {"core": "1"}
    spec: dict[str, Any] = {
        "seed": 3,
        "method": {"name": "prox", "mu": 1.0},
        "terms": [{"name": "t", "w": 2}],
    }
    later = {**spec, "method": {**spec["method"], "adapt": False}}
    terms = {**later, "terms": [{"name": "t", "w": 2, "layers": []}]}
    named = identity.point_id(spec, code)
    assert identity.point_id(later, code, ["method.adapt"]) == named
    assert identity.point_id(terms, code, ["method.adapt", "terms.0.layers"]) == named
    assert identity.point_id(later, code) != named
    assert identity.point_id(spec, code, ["terms.0.w"]) != named
