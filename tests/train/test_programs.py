"""Compiled programs: where they are kept, who compiles, and where compilers speak."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import time
import warnings
from pathlib import Path

import pytest

from fl.train import programs


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs."""
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "compiled"))
    return tmp_path / "compiled"


def nobody() -> None:
    pass


def test_programs_lie_beside_the_store_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    for name in ("one", "two"):
        beside = programs.keep_beside(tmp_path / name / "runs")
        assert beside == tmp_path / name / "compiled"
        assert os.environ[programs.VARIABLE] == str(beside)
    monkeypatch.setenv(programs.VARIABLE, "mine")
    assert programs.keep_beside(tmp_path / "one" / "runs") == Path("mine")
    assert os.environ[programs.VARIABLE] == "mine"


def test_programs_that_somebody_else_could_have_put_there_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    (tmp_path / "compiled").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: (tmp_path.stat().st_uid) + 1)
    assert programs.keep_beside(tmp_path / "runs") is None
    assert programs.VARIABLE not in os.environ


def compile_slowly(file: Path) -> None:
    with programs.once("p", nobody, pause=0.01) as first:
        if first:
            time.sleep(0.3)
            with file.open("a") as told:
                told.write("compiled\n")


def test_jobs_at_once_compile_a_program_once(kept: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    jobs = [context.Process(target=compile_slowly, args=(tmp_path / "told",)) for _ in range(4)]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(300)
    assert [job.exitcode for job in jobs] == [0] * 4
    assert (tmp_path / "told").read_text() == "compiled\n"
    with programs.once("p", nobody) as first:
        assert not first
    with programs.once("q", nobody) as first:
        assert first
    (kept / "p.ready").unlink()
    with programs.once("p", nobody) as first:
        assert first, "a cache that was deleted is filled again"


def test_who_waits_for_a_compiler_leaves_when_asked(kept: Path) -> None:
    def leave() -> None:
        raise InterruptedError

    with (
        programs.once("p", nobody) as first,
        pytest.raises(InterruptedError),
        programs.once("p", leave),
    ):
        pass
    assert first


def test_who_fails_to_compile_lets_the_next_one_try(kept: Path) -> None:
    with contextlib.suppress(RuntimeError), programs.once("p", nobody):
        raise RuntimeError
    with programs.once("p", nobody) as first:
        assert first


def test_a_folder_that_takes_no_files_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "compiled").write_text("")
    monkeypatch.setenv(programs.VARIABLE, str(tmp_path / "compiled"))
    with programs.once("p", nobody) as first:
        assert first
    monkeypatch.delenv(programs.VARIABLE)
    with programs.once("p", nobody) as first, programs.once("p", nobody) as second:
        assert first and second


def test_what_compilers_say_is_not_in_the_log_of_a_training(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import torch._dynamo  # Its loggers have handlers of their own.

    place = Path(torch._dynamo.__file__).parent / "guards.py"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with programs.apart(tmp_path, "b"):
            assert not list(tmp_path.iterdir()), "made when there is something to say"
            logging.getLogger("torch._dynamo.guards").warning("hit the recompile limit")
            logging.getLogger("torch._inductor.utils").warning("not enough SMs")
            warnings.warn_explicit("deprecated", FutureWarning, str(place), 1)
            warnings.warn_explicit("of a method", UserWarning, "mylab/methods/own.py", 3)
            logging.getLogger("torch.nn").warning("of a layer")
        logging.getLogger("torch._dynamo.guards").warning("afterwards")
    said = capfd.readouterr().err
    assert "recompile limit" not in said and "SMs" not in said and "deprecated" not in said
    assert [str(one.message) for one in seen] == ["of a method"]
    told = (tmp_path / "logs" / "compiler" / "b.log").read_text()
    assert "recompile limit" in told and "SMs" in told and "deprecated" in told
    assert "of a method" not in told and "of a layer" not in told and "afterwards" not in told
