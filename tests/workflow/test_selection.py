"""Selecting runs of a study by ``--only``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from planning import Planned

from fl.base.errors import ConfigError
from fl.cli import main, run_command
from fl.plan import plan
from fl.workflow import selection


def test_a_selection_has_the_runs_from_which_its_own_start(planned: Callable[..., Planned]) -> None:
    study = planned(
        methods={
            "local": None,
            "fedavg": None,
            "tuned": {"method": "finetune", "start": "fedavg"},
        }
    )
    whole = plan.make(study.root / "config")
    [name] = whole.studies
    part = selection.select(whole, selection.parse(["method=tuned"]))
    assert {run.method for run in part.studies[name].runs} == {"tuned"}
    methods = {run.bundle: run.method for run in whole.studies[name].runs}
    assert {methods[bundle] for bundle in part.bundles} == {"tuned", "fedavg"}


@pytest.mark.parametrize(
    ("only", "message"),
    [
        ("method=fedprocs", "--only.method: unknown method of the study 'fedprocs'"),
        ("metod=fedavg", "--only: unknown key 'metod' (did you mean 'method'?)"),
        ("model=", "--only.model: has no name"),
    ],
)
def test_what_selects_nothing_is_refused(
    only: str, message: str, planned: Callable[..., Planned]
) -> None:
    whole = plan.make(planned().root / "config")
    with pytest.raises(ConfigError) as error:
        selection.select(whole, selection.parse([only]))
    assert message in str(error.value)


def test_lines_of_snakemake_go_to_a_log_whose_end_is_shown_after_a_failure(
    planned: Callable[..., Planned],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    root = planned(methods={"local": None}).root
    monkeypatch.chdir(root)
    (root / "Snakefile").write_text(
        "print('a line')\nfrom fl.workflow import monitor\nmonitor.print_line('of fedloom')\n"
        "raise ValueError('no luck')\n"
    )
    log = root / "results" / "logs" / "snakemake.log"
    assert main.main(["run", "tiny"]) != 0
    said = capfd.readouterr().err
    assert said.index("of fedloom") < said.index("no luck") < said.rindex(str(log))
    assert {"a line", "of fedloom"} <= {*log.read_text().splitlines()}
    log.unlink()
    assert main.main(["run", "tiny", "--", "--cores", "1"]) != 0
    assert "no luck" in capfd.readouterr().err and not log.exists()


def test_arguments_of_snakemake_keep_their_own_config() -> None:
    words, snakemake = main.split(["run", "a", "--", "--config", "cluster=true", "-n"])
    assert words == ["run", "a"]
    made = run_command.snakemake_words(["a"], ["method=b"], Path("config"), snakemake)
    assert made[:1] == ["selected"]
    assert made[1:] == ["--config", "studies=a", "only=method=b", "cluster=true", "-n"]
