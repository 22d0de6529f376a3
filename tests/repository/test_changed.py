"""What `make test-fast` chooses for a change, and what it says that it leaves out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import changed
import pytest


def test_a_method_is_held_to_the_contract_and_to_its_arithmetic_by_hand() -> None:
    choice = changed.choose(["fl/methods/fedprox.py"])
    assert list(choice.names) == ["fedprox"]
    assert {"tests/contract/test_methods.py", "tests/contract/test_by_hand.py"} <= {*choice.by_name}
    assert not choice.left_out


def test_names_choose_among_the_tests_of_their_files_and_no_others() -> None:
    *files, flag, expression = changed.choose(["fl/methods/knn_per.py"]).arguments()
    assert flag == "-k"
    assert "tests/repository/test_docs.py" in files
    assert "test_docs.py" not in expression
    assert "not test_methods.py" in expression
    assert expression.endswith("or knn-per or knn_per")


def test_a_part_is_tested_with_the_methods_that_import_it() -> None:
    choice = changed.choose(["fl/parts/path.py"])
    assert set(choice.names) == {"scaffold", "fednova"}
    assert "tests/contract/test_methods.py" in choice.by_name


def test_the_core_is_tested_with_two_methods_and_the_others_are_said_to_be_left_out() -> None:
    choice = changed.choose(["fl/engine/engine.py"])
    methods = changed.dependents("fl/engine/engine.py", "fl/methods")
    assert list(choice.whole) == ["tests/engine/test_engine.py"]
    assert list(choice.names) == [stem.replace("_", "-") for stem in methods[: changed.MOST]]
    [left] = choice.left_out
    assert left.count(", ") == len(methods) - changed.MOST
    assert all(stem in left for stem in methods[changed.MOST :])


@pytest.mark.parametrize(
    ("path", "test"),
    [
        ("fl/store/store.py", "tests/store/test_store.py"),
        ("fl/data/lock.py", "tests/data/test_download.py"),
        ("fl/report/page.py", "tests/report/test_report.py"),
        ("fl/data/nifti.py", "tests/data/test_nifti.py"),
        ("docs/tutorial.md", "tests/repository/test_docs.py"),
    ],
)
def test_a_file_has_the_tests_of_its_name_or_those_that_import_it(path: str, test: str) -> None:
    assert test in changed.choose([path]).whole


def test_a_helper_is_tested_by_some_that_import_it() -> None:
    choice = changed.choose(["tests/helpers/shelving.py"])
    assert 1 <= len(choice.whole) <= changed.MOST
    assert all("shelving" in (changed.ROOT / file).read_text() for file in choice.whole)


@pytest.mark.parametrize("path", ["workflow/Snakefile", "tests/graph/project.py", "Makefile"])
def test_what_is_not_tested_is_said(path: str) -> None:
    choice = changed.choose([path])
    assert choice.arguments() == []
    assert [line.partition(":")[0] for line in choice.left_out] == [path]


def test_a_test_that_was_edited_comes_first_and_whole() -> None:
    path = "tests/contract/test_methods.py"
    first, *rest, _, expression = changed.choose(["fl/methods/moon.py", path]).arguments()
    assert first == path
    assert path not in rest
    assert "test_methods.py" not in expression


def test_changed_is_what_differs_from_the_fork_committed_or_not(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True)

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)
        git("add", name)

    git("init", "--quiet", "--initial-branch=main")
    for name in ("kept", "edited", "removed", "committed"):
        write(name, "1")
    git("commit", "--quiet", "--message=1")
    git("checkout", "--quiet", "-b", "piece")
    write("committed", "2")
    git("commit", "--quiet", "--message=2")
    git("rm", "--quiet", "removed")
    (tmp_path / "edited").write_text("2")
    (tmp_path / "new").write_text("1")
    assert changed.changed_since("main", tmp_path) == ["committed", "edited", "new"]
    assert changed.changed_since("nowhere", tmp_path) == ["edited", "new"]


def test_no_test_starts_when_the_time_is_over(tmp_path: Path) -> None:
    (tmp_path / "test_slow.py").write_text(
        "import time\n\nnow = time.monotonic\n\n"
        "def test_a(): time.monotonic = lambda: now() + 1000\n\ndef test_b(): assert False\n"
    )
    run = (
        "import sys, pytest, changed; "
        "sys.exit(pytest.main(['-q', 'test_slow.py'], plugins=[changed.Budget(900)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", run],
        cwd=tmp_path,
        env={"PYTHONPATH": str(Path(changed.__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
    assert "left out: 1 chosen tests that 900 s had no room for" in done.stdout
