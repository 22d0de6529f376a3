"""What changes a code hash and what does not, on a small package made for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fl.base import identity, plugins, registry
from fl.base.errors import ConfigError

METHOD = '''"""A method."""

from fl.api import losses


class Method:
    """It has a rate."""

    rate = 0.5
    """Its rate."""

    def step(self, x):
        """One step."""
        return losses.loss(x) * self.rate  # down
'''

Package = Callable[..., Path]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """``package(path=text, ...)`` writes files of a package ``fl``; returns the method's file."""
    root = tmp_path / "fl"
    monkeypatch.setattr(identity, "ROOT", root)
    monkeypatch.setattr(plugins, "_roots", {root.name: root})
    monkeypatch.setattr(identity, "LEDGER", root / "equivalent.yaml")
    monkeypatch.setattr(identity, "UNDECISIVE", {root / "errors.py"})

    def write(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        identity._read.cache_clear()
        identity._ledger.cache_clear()
        identity._code.cache_clear()
        return root / "methods" / "own.py"

    yield write
    identity._read.cache_clear()
    identity._ledger.cache_clear()
    identity._code.cache_clear()


@pytest.fixture
def method(package: Package) -> Path:
    return package(
        {
            "__init__.py": "",
            "errors.py": "class E(Exception): ...\n",
            "methods/__init__.py": "SIDE = 1\n",
            "methods/own.py": METHOD,
            "parts/__init__.py": "from .losses import loss\nfrom .mixing import mix\n",
            "parts/losses.py": "from fl.base.errors import E\n\n\ndef loss(x):\n    return x\n",
            "parts/mixing.py": "def mix(x):\n    return x\n",
        }
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""A method."""', '"""Another docstring,\n\nlonger."""'),
        ('    """It has a rate."""\n', ""),
        ('    """Its rate."""\n', '    """Its learning rate."""\n'),
        ('        """One step."""\n', ""),
        ("  # down", "  # up"),
        (
            "return losses.loss(x) * self.rate",
            "return (\n            losses.loss(x)\n * self.rate)",
        ),
        ("0.5", "0.50"),
    ],
)
def test_words_and_layout_leave_the_hash(method: Path, package: Package, old: str, new: str):
    before = identity.code(method)
    assert METHOD.count(old) == 1
    package({"methods/own.py": METHOD.replace(old, new)})
    assert identity.code(method) == before


def test_what_only_checks_read_leaves_the_hash(method: Path, package: Package):
    before = identity.code(method)
    rate = "    rate = 0.5\n"
    for stated, same in (("published_splits", True), ("published", False)):
        declared = f'{rate}    {stated}: tuple[str, ...] = ("test",)\n'
        package({"methods/own.py": METHOD.replace(rate, declared)})
        assert (identity.code(method) == before) == same


@pytest.mark.parametrize(
    ("old", "new"),
    [("0.5", "0.25"), ("* self.rate", "/ self.rate"), ("(self, x)", "(self, x=None)")],
)
def test_code_changes_the_hash(method: Path, package: Package, old: str, new: str):
    before = identity.code(method)
    package({"methods/own.py": METHOD.replace(old, new)})
    assert identity.code(method) != before


def test_a_text_that_is_used_is_code(package: Package):
    before = identity.code(package({"methods/own.py": 'mode = "a"\n'}))
    assert identity.code(package({"methods/own.py": 'mode = "b"\n'})) != before


@pytest.mark.parametrize(
    "line",
    [
        "import fl.api.losses",
        "import fl.api.losses as losses",
        "from fl.parts import losses",
        "from fl.api.losses import loss",
        "from fl.api.losses import *",
        "from ..parts import losses",
        "from ..parts.losses import loss",
        "def late():\n    from fl.api.losses import loss",
    ],
)
def test_imports_are_followed_however_they_are_written(method: Path, package: Package, line: str):
    package({"methods/own.py": f"{line}\n"})
    assert list(identity.files(method)) == ["fl/methods/own.py", "fl/api/losses.py"]


def test_a_neighbour_is_imported_by_a_dot(method: Path, package: Package):
    package({"methods/own.py": "from . import two\n", "methods/two.py": "import numpy, fl.rng2\n"})
    assert list(identity.files(method)) == ["fl/methods/own.py", "fl/methods/two.py"]


def test_a_package_counts_where_names_are_imported_from_it(method: Path, package: Package):
    package({"methods/own.py": "from fl.parts import loss\n"})
    assert list(identity.files(method)) == [
        "fl/methods/own.py",
        "fl/parts/__init__.py",
        "fl/api/losses.py",
        "fl/parts/mixing.py",
    ]


def test_a_part_changes_the_hash_of_those_that_use_it_alone(method: Path, package: Package):
    package({"methods/other.py": "from fl.parts.mixing import mix\n"})
    other = method.with_name("other.py")
    before = identity.code(method), identity.code(other)
    package({"parts/mixing.py": "def mix(x):\n    return -x\n"})
    after = identity.code(method), identity.code(other)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_code_that_decides_no_number_does_not_count(method: Path, package: Package):
    before = identity.code(method)
    package({"errors.py": "class E(ValueError): ...\n"})
    assert identity.code(method) == before


def test_a_circle_of_imports_ends(package: Package):
    method = package({"methods/own.py": "import fl.a\n", "a.py": "import fl.methods.own\n"})
    assert list(identity.files(method)) == ["fl/a.py", "fl/methods/own.py"]


def test_the_ledger_leads_back_to_the_oldest_equivalent(method: Path, package: Package):
    new, other = identity.code(method), identity.code(method.with_name("__init__.py"))
    entry = "- {{root: fl/methods/own.py, old: {}, new: {}}}\n"
    package({"equivalent.yaml": entry.format("00000000", new) + entry.format("1e5", "00000000")})
    assert identity.code(method) == "1e5"
    assert identity.code(method.with_name("__init__.py")) == other


def test_a_ledger_that_goes_round_in_a_circle_is_refused(method: Path, package: Package):
    new = identity.code(method)
    entry = "- {{root: fl/methods/own.py, old: {}, new: {}}}\n"
    package({"equivalent.yaml": entry.format("a", new) + entry.format(new, "a")})
    with pytest.raises(ConfigError, match=r"fl/equivalent.yaml: fl/methods/own.py: .* circle"):
        identity.code(method)


def test_a_ledger_entry_without_its_keys_is_named(method: Path, package: Package):
    package({"equivalent.yaml": "- {root: fl/methods/own.py, new: a}\n"})
    with pytest.raises(ConfigError, match=r"fl/equivalent.yaml: 0: .*root, old and new"):
        identity.code(method)


def test_the_ledger_that_is_shipped_can_be_read():
    identity._ledger.cache_clear()
    for entries in identity._ledger().values():
        assert all(len(known) == 16 for pair in entries.items() for known in pair)


def test_a_digest_takes_no_account_of_key_order():
    assert identity.digest({"a": 1, "b": 2.5}) == identity.digest({"b": 2.5, "a": 1})
    assert identity.digest({"a": 1}) != identity.digest({"a": 1.0})


def test_differences_are_named_by_their_keys():
    ours = {"training": {"lr": 0.1, "rounds": 2}, "seed": 0}
    theirs = {"training": {"lr": 0.05, "rounds": 2}, "start": "x"}
    assert list(identity.difference(ours, theirs)) == [
        "seed: 0, not None",
        "start: None, not 'x'",
        "training.lr: 0.1, not 0.05",
    ]


# The real package

APART = {
    "from a config to runs; what it settles is in the spec": """
        study data/__init__ data/partition pytorch/sparing
    """,
    "finds the code that a config names, and says what of it counts": """
        code/declared code/digest code/identity code/meanings code/registry code/syntax
    """,
    "what there is to do, and makes what runs read under its name": "planning data/materials",
    "computes runs and keeps them as they were computed": """
        train store pytorch/allocator pytorch/memory pytorch/operations pytorch/tensorboard
    """,
    "shows what was computed": """
        __main__ analyses analysis cli data/distance report results units version
    """,
    "empty": """
        __init__ code/__init__ data/datasets/__init__ data/schemes/__init__ features/__init__
        methods/__init__ models/__init__ parts/__init__ pytorch/__init__ simulation/__init__
        tasks/__init__ terms/__init__
    """,
}
"""Modules and folders that decide no number, and why; all others have to be reached from a root."""


def reached() -> set[str]:
    """Every file that counts for some run, data set or partition."""
    roots = [identity.CORE, identity.PREPARED, identity.DEALT]
    # An analysis has a name of its own, and decides nothing of the runs that it reads.
    kinds = [kind for kind in registry.FOLDERS if kind != "analysis"]
    roots += [entry.file for kind in kinds for entry in registry.entries(kind)]
    return {name for root in roots for name in identity.files(root)}


def test_every_module_decides_numbers_or_is_said_not_to() -> None:
    apart = {f"fl/{name}" for names in APART.values() for name in names.split()}
    cut = {f"fl/{path.relative_to(identity.ROOT).as_posix()}" for path in identity.UNDECISIVE}
    there = {f"fl/{p.relative_to(identity.ROOT).as_posix()}" for p in identity.ROOT.rglob("*.py")}
    rest = there - reached() - cut
    unsaid = {
        name for name in rest if not {name.removesuffix(".py"), name.rpartition("/")[0]} & apart
    }
    assert not unsaid, "new: reached from no root of the identity, and not said to decide nothing"
    told = {name for name in there if {name.removesuffix(".py"), name.rpartition("/")[0]} & apart}
    assert not told & reached(), "said to decide nothing, but some run's name depends on it"
    assert cut <= there


EDITS = {
    "simulation/assembly.py": ('"mean": 0.5', '"mean": 0.25', {"core"}),
    "simulation/scored.py": ("CHUNK = 1024", "CHUNK = 512", {"core"}),
    "tasks/classification.py": (
        *("means(correct, sizes)", "means(1 - correct, sizes)"),
        {"core", "method", "term cosine"},
    ),
    "tasks/segmentation.py": ("SMOOTH = 1e-5", "SMOOTH = 1.0", set()),
    "data/augment.py": ("PAD = 4", "PAD = 3", {"core"}),
    "keyed.py": ("stream * _STREAM", "2 * stream * _STREAM", {"core", "method", "term cosine"}),
    "parts/proximal.py": ("mu / 2", "mu / 3", {"method"}),
    "methods/fedprox.py": ("proximal(self.mu)", "proximal(2 * self.mu)", {"method"}),
    "parts/drift.py": ("dim=-1", "dim=-2", {"term cosine"}),
    "terms/cosine.py": ("self.mu", "2 * self.mu", {"term cosine"}),
    "models/mlp.py": ("nn.ReLU()", "nn.GELU()", {"model"}),
    "data/prepared.py": ('"sd": 1.0', '"sd": 2.0', {"dataset", "partition"}),
    "data/datasets/digits.py": ("1 / 16", "1 / 15", {"dataset", "partition"}),
    "data/dealt.py": ('"published": prepared.split', '"published": None', {"partition"}),
    "data/schemes/dirichlet.py": ("held.min() >= least", "held.min() > least", {"partition"}),
    # And what a run does not use leaves it alone.
    "parts/contrast.py": ("softplus", "relu", set()),
    "methods/moon.py": ("self.tau", "2 * self.tau", set()),
    "train/job.py": ("return", "return  # no number", set()),
}
"""By file: a text, another that changes a number, and what of a run's identity changes for it."""


def test_an_edit_that_changes_a_number_changes_the_name_of_what_uses_it(tmp_path: Path) -> None:
    copy = tmp_path / "fl"
    shutil.copytree(identity.ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = tmp_path / "names.py"
    script.write_text(NAMES)
    (tmp_path / "edits.json").write_text(
        json.dumps({name: [old, new] for name, (old, new, _) in EDITS.items()})
    )
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    changed = {name: set(keys) for name, keys in json.loads(done.stdout).items()}
    assert changed == {name: keys for name, (*_, keys) in EDITS.items()}


NAMES = """
import json, pathlib
from fl.base import identity, registry
from fl.plan import specs
from fl.base.errors import Where

def settled(kind, name, **keys):
    return {"name": name, **registry.find(kind, name, Where("test")).parse(keys, Where("test"))}

spec = {
    "dataset": settled("data set", "digits"),
    "partition": settled("partition scheme", "dirichlet", clients=3, alpha=1.0),
    "model": settled("model", "mlp"), "method": settled("method", "fedprox"),
    "terms": [settled("term", "cosine", layers=["0"])],
}
known, read = {}, identity._read.__wrapped__
def reading(path):
    key = path, path.read_bytes()
    if key not in known:
        known[key] = read(path)
    return known[key]
identity._read = reading

before = specs.code(spec)
found = {}
for name, (old, new) in json.loads(pathlib.Path("edits.json").read_text()).items():
    path = pathlib.Path("fl") / name
    text = path.read_text()
    assert old in text, (name, old)
    path.write_text(text.replace(old, new))
    identity._code.cache_clear()
    after = specs.code(spec)
    found[name] = [key for key in before if after[key] != before[key]]
    path.write_text(text)
print(json.dumps(found))
"""
