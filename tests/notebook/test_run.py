"""`fl.run` and `fl.load`: a study written in Python is the study that a file would be."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import planning
import pytest
import torch
from notebooks import CALL
from sklearn.metrics import f1_score, recall_score
from torch import Tensor

import fl
from fl.api import BuildContext, Forward, Method, declare, recipe, task_loss
from fl.api.uploads import attacker_mask
from fl.base.errors import FedloomError
from fl.cli import main
from fl.notebook import display, run, training
from fl.plan import plan
from fl.report import claims_tables, result_files
from fl.report.facts import gather
from fl.report.training_tables import training_tables
from fl.runner import process_settings
from fl.runner.runs import Failure
from fl.store import run_check
from fl.store.store import Store


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a config folder."""
    monkeypatch.chdir(tmp_path)
    planning.write_config(tmp_path, {"methods": {"fedavg": None, "ditto": {"lam": [0.1, 1.0]}}})
    return tmp_path


class OneLayer(torch.nn.Module):
    """The model of a class in a notebook."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(math.prod(shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1))
        return out


def ids(result: fl.Result) -> set[str]:
    return {run.run for run in result.study.runs}


def test_the_example_of_the_readme_has_the_runs_of_the_table_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal runs have equal numbers; in the table itself no two methods have the same."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "train", lambda *_: [])
    readme = (planning.ROOT / "README.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", readme, re.S)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    quickstart = plan.read(planning.ROOT / "config", ["quickstart"]).studies["quickstart"]
    assert ids(names["result"]) == {run.run for run in quickstart.runs}
    table = re.findall(r"^  (\S+) +([\d.]+ +[\d.]+ +[\d.]+) +3\b", readme, re.M)
    assert [method for method, _ in table] == [*{run.title: None for run in quickstart.runs}]
    assert len({numbers for _, numbers in table}) == len(table)


def test_a_call_and_a_file_name_the_same_runs_and_share_them(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = fl.run(methods=[{"ditto": {"lam": (0.1, 1.0)}}, "fedavg"], **CALL)
    planned = plan.read(Path("config"), ["tiny"]).studies["tiny"]
    assert ids(called) == {run.run for run in planned.runs}
    loaded = fl.load("tiny")
    pd.testing.assert_frame_equal(loaded.table(), called.table())
    pd.testing.assert_frame_equal(loaded.curves(), called.curves())
    with monkeypatch.context() as patch:
        patch.setattr(training, "train_bundle", lambda *given, **named: pytest.fail("trained"))
        assert ids(fl.run(methods=["fedavg"], **CALL)) < ids(called)
    page = called.report()
    assert page == lab / "results" / "report" / "notebook.html"
    assert "ditto" in page.read_text()
    shown = str(called).splitlines()
    assert shown[-1] == f"folder of runs: {lab / 'runs'}"
    for title, mean in called.table()[["title", "mean"]].to_numpy():
        [line] = [line for line in shown if line.startswith(f"  {title} ")]
        assert line.split()[1] == f"{100 * mean:.1f}"


def test_per_draw_each_run_is_trained_with_the_seed_of_its_draw(lab: Path) -> None:
    """Four draws, trained: each has its seed in its record, and a model of its own."""
    scheme = {"dirichlet": {"clients": 4, "alpha": 0.5, "min_samples": 5, "seed": [3, 5, 8, 13]}}
    call = {**CALL, "partition": scheme, "rounds": 1, "seeds": "per-draw"}
    tuned = {"method": "finetune", "start": "fedavg"}
    result = fl.run(methods={"fedavg": None, "tuned": tuned}, baseline="fedavg", **call)
    store = Store(Path(result.settings.store))
    specs = [store.record(run.run)["spec"] for run in result.study.runs]
    seeds = [(spec["seed"], spec["partition"]["seed"]) for spec in specs]
    assert sorted(seeds) == [(seed, seed) for seed in (3, 3, 5, 5, 8, 8, 13, 13)]
    weights = [result.model("fedavg", seed=seed).module.state_dict() for seed in (3, 5)]
    assert not weights[0]["1.weight"].equal(weights[1]["1.weight"])
    facts = gather("notebook", Path(result.settings.results), store.root, result.study)
    assert "Each draw has its own training seed" in " ".join(claims_tables.claims_made(facts))
    lines = {row.head: row.cells[0].text for row in training_tables(facts)[0].rows}
    assert lines["Training seeds"] == "one of each draw: 3, 5, 8, 13"
    with pytest.raises(FedloomError, match="'fedavg' has runs in several settings"):
        result.model("fedavg")


def test_what_a_command_trained_is_found_and_gets_weights_only_if_asked(lab: Path) -> None:
    trained = planning.make(lab / "other")
    assert trained.train("fedavg") == 0
    config = lab / "other" / "config"
    found = fl.run(methods="fedavg", config=config, **CALL)
    assert ids(found) == set(trained.runs("fedavg"))
    with pytest.raises(FedloomError, match=r"weights are not stored.*keep_weights=True"):
        found.model("fedavg")
    kept = fl.run(methods="fedavg", config=config, keep_weights=True, **CALL)
    assert kept.model("fedavg").training is False


def test_without_a_config_folder_results_lie_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    [run] = ids(fl.run(methods=["local"], **{**CALL, "rounds": 1}))
    assert Store(Path("results/runs")).has_weights(run)


def test_commands_and_load_read_what_a_call_wrote_without_a_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each in a process of its own, which has not seen the class of the model."""
    monkeypatch.chdir(tmp_path)
    call = {**CALL, "rounds": 1, "model": OneLayer}
    result = fl.run(methods=["fedavg"], name="mine", **call)
    assert len(fl.load("mine").draws()) == 1
    [command] = re.findall("fedloom (report .*?);", result.to_latex())
    [run] = ids(result)
    x, _ = result.inputs("fedavg", 0)
    fl.load("mine").model("fedavg")
    np.save("x.npy", np.zeros((2, *x.shape[1:]), "float32"))
    environment = {**os.environ, "PYTHONPATH": str(planning.ROOT)}
    for words in (["show"], ["show", "mine"], command.split(), ["predict", run, "x.npy"]):
        subprocess.run([sys.executable, "-m", "fl", *words], check=True, env=environment)
    assert Path("results/report/mine.html").exists()
    assert capfd.readouterr().out.count("predicted") == 1
    assert main.main(["show", "min"]) == 1
    assert "'mine'" in capfd.readouterr().err


def test_a_study_has_metrics_of_predictions_that_are_kept(lab: Path) -> None:
    """scikit-learn says of each client what the tables have; no weights are needed for it."""
    metrics = ["macro_f1", "auroc", "calibration_error", "per_class_accuracy"]
    plain = fl.run(methods=["fedavg", "ditto"], **CALL, keep_weights=False)
    call = {**CALL, "metrics": metrics}
    result = fl.run(methods=["fedavg", "ditto"], **call, keep_weights=False)
    assert ids(result) == ids(plain), "no run has another name, but is trained again"
    store = Store(Path(result.settings.store))
    assert not any(map(store.has_weights, ids(result)))
    assert all(run_check.find_problems(store, run) == [] for run in ids(result))
    rows = result.curves().query("method == 'ditto'")
    for client, seen in result.predictions("ditto").groupby("client"):
        told = rows[rows["client"] == client].query("round == 6").set_index("metric")["value"]
        labels = sorted(set(seen["label"]))
        each = recall_score(seen["label"], seen["predicted"], labels=labels, average=None)
        for label, share in zip(labels, each, strict=True):
            assert told[f"accuracy_of_class_{label}"] == share
        f1 = f1_score(seen["label"], seen["predicted"], labels=labels, average="macro")
        assert told["macro_f1"] == pytest.approx(f1)
        assert told["accuracy"] == (seen["label"] == seen["predicted"]).mean()
        assert 0 <= told["calibration_error"] <= 1
    page = result.report().read_text()
    assert "macro f1" in page and "class 0" in page and "Areas under the ROC curve" in page
    with pytest.raises(FedloomError, match=r"unknown split 'train'. Allowed: test, val"):
        result.predictions("fedavg", split="train")
    counts = result.confusion("ditto")
    kept = fl.run(methods=["fedavg", "ditto"], **call, keep_weights=True)
    kept_ditto = fl.run(methods=["ditto"], **{**CALL, "keep_weights": True})
    assert kept_ditto.model("ditto", client=0).training is False
    pd.testing.assert_frame_equal(kept_ditto.confusion("ditto"), counts)
    pd.testing.assert_frame_equal(kept.predictions("ditto"), result.predictions("ditto"))
    with pytest.raises(FedloomError, match="metrics: are of the final round, but scored is best"):
        fl.run(methods=["fedavg"], **call, scored="best")


def test_all_metrics_are_of_the_clients_that_are_scored(lab: Path) -> None:
    metrics = ["macro_f1", "per_class_accuracy"]
    training = {"evaluate_clients": 1, "rounds": 1}
    result = fl.run(methods=["fedavg"], **{**CALL, **training, "metrics": metrics})
    rows = result.curves()
    scored = rows.groupby(rows["metric"].str.replace(r"_\d+$", "", regex=True))["client"].unique()
    assert scored["accuracy"].size == 1 and result.predictions("fedavg")["client"].nunique() > 1
    assert {"macro_f1", "accuracy_of_class"} <= {*scored.index}
    for clients in scored:
        assert clients.tolist() == scored["accuracy"].tolist()


def test_predictions_are_those_behind_the_recorded_metrics(lab: Path) -> None:
    methods = ["local", "ditto", "fedbn", {"knn-per": {"start": "fedavg"}}, "fedavg"]
    model = {"mlp": {"hidden": [5], "norm": "batch"}}
    call = {**CALL, "model": model, "analyses": ["confusion"]}
    result = fl.run(methods=methods, **{**call, "seeds": 2, "rounds": 2})
    curves = result.curves().query("metric == 'accuracy'")
    last = curves[curves["round"] == curves.groupby("method")["round"].transform("max")]
    for method in ("local", "ditto", "fedbn", "knn-per", "fedavg"):
        seen = result.predictions(method)
        right = (seen["label"] == seen["predicted"]).groupby([seen["seed"], seen["client"]]).mean()
        recorded = last[last["method"] == method].set_index(["seed", "client"])["value"]
        assert right.to_dict() == recorded.to_dict(), method
        scores = seen.filter(like="score_")
        assert scores.sum(axis=1).to_numpy() == pytest.approx(1.0, abs=1e-5)
        assert result.confusion(method).to_numpy().sum() == len(seen)
    [analysis] = Path("results/analyses").iterdir()
    measured = pd.read_parquet(analysis / "table.parquet")
    assert set(measured["method"]) == {"local", "ditto", "fedbn", "knn-per", "fedavg"}
    assert "area under ROC" in result.report().read_text()
    both = result.predictions("ditto", stage="global", seed=1, split="val")
    assert set(both["seed"]) == {1}
    x, y = result.inputs("ditto", client=3, seed=1)
    seen = result.predictions("ditto", seed=1).query("client == 3")
    assert result.model("ditto", client=3, seed=1)(x).argmax(1).tolist() == list(seen["predicted"])
    assert y.tolist() == list(seen["label"])


WRONG = {
    "round": ({"round": 5}, "fl.run: round: unknown key 'round' (did you mean 'rounds'?)"),
    "twice": ({"datasets": ["digits"]}, "datasets: is given in addition to dataset"),
    "arrays": (
        {"dataset": ([[1.0]], [0])},
        "dataset: is a tuple. Allowed: a name, a name with its keys, or data of your",
    ),
    "no seeds": ({"seeds": 0}, "seeds: is 0. Allowed: a number of seeds, 1 or"),
    "none": ({"methods": []}, "fl.run: methods: is empty"),
    "name": ({"name": "a/b"}, "fl.run: name: 'a/b' is no name for a study"),
    "taken": ({"name": "tiny"}, "name: is 'tiny', which is the study in config/studies/tiny.yaml"),
    "processes": ({"execution": {"processes": 2}}, "execution.processes: is 2, but a call trains"),
    "config": ({"config": "nowhere"}, "nowhere/config.yaml: does not exist"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_as_of_a_study_and_without_our_calls(lab: Path, case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(FedloomError) as caught:
        fl.run(**{**CALL, "methods": ["fedavg"], **changes})
    assert message in str(caught.value)
    assert len(caught.traceback) == 2, "of ours only that which was called"
    assert caught.value._render_traceback_() == [f"{caught.typename}: {caught.value}"]


def test_a_value_without_a_name_is_refused_with_the_name_that_is_meant() -> None:
    said = r"fl\.run: 'digits' is given without a name\. Try: fl\.run\(dataset='digits', "
    with pytest.raises(FedloomError, match=said):
        fl.run("digits")


def test_what_a_result_does_not_have_is_said(lab: Path) -> None:
    models = {"models": ["logistic", {"mlp": {"hidden": [5]}}]}
    call = {key: value for key, value in CALL.items() if key != "model"}
    result = fl.run(methods=["fedavg", "local"], **{**call, **models, "rounds": 1})
    for wrong, message in (
        (lambda: result.model("fedavgg"), "unknown method 'fedavgg'"),
        (lambda: result.model("fedavg"), "several settings. Allowed: model: "),
        (lambda: result.model("fedavg", modell="logistic"), "unknown argument 'modell'"),
        (lambda: result.model("fedavg", seed=7, model="logistic"), "planned seeds: 0"),
        (lambda: result.model("local", model="logistic"), "give client=, a number from 0 to 3"),
        (
            lambda: result.model("local", client=4, model="logistic"),
            "client is 4. Allowed: a number",
        ),
        (
            lambda: result.inputs("local", "A", model="logistic"),
            "client is 'A'. Allowed: a number from 0 to 3",
        ),
        (lambda: result.model("local", stage="global", model="logistic"), "unknown stage 'global'"),
        (lambda: result.predictions("local", split="tset", model="logistic"), "unknown split"),
        (lambda: fl.load("nothing"), "fl.load: unknown study 'nothing'"),
    ):
        with pytest.raises(FedloomError) as caught:
            wrong()
        assert message in str(caught.value)


def test_an_interrupted_call_goes_on_with_the_same_bits(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = fl.run(methods=["fedavg"], **CALL)
    [run] = ids(once)
    store = Store(lab / "runs")
    undisturbed = store.metrics(run)
    store.remove(run)

    class Interrupting(display.Rounds):
        def show(self, finished: Mapping[str, Any]) -> None:
            super().show(finished)
            if finished[run].number == 3:
                os.kill(os.getpid(), 2)

    with monkeypatch.context() as patch:
        patch.setattr(display, "Rounds", Interrupting)
        with pytest.raises(KeyboardInterrupt, match="the same call continues"):
            fl.run(methods=["fedavg"], **CALL)
    assert store.round(run) == 3
    fl.run(methods=["fedavg"], **CALL)
    pd.testing.assert_frame_equal(store.metrics(run), undisturbed)


def test_a_thread_trains_too_though_no_signal_reaches_it(lab: Path) -> None:
    with ThreadPoolExecutor() as pool:
        result = pool.submit(fl.run, methods=["fedavg"], **{**CALL, "rounds": 1}).result()
    assert [*result.runs()["state"]] == ["complete"]


def test_a_run_that_fails_stops_no_other(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = training.train_bundle

    def failing(bundle: Any, *given: Any, **named: Any) -> list[Failure]:
        broken = "Local" in bundle.title
        return [Failure(bundle.title, "broken")] if broken else train(bundle, *given, **named)

    monkeypatch.setattr(training, "train_bundle", failing)
    with pytest.warns(UserWarning, match="failed: Local on synthetic.*: broken"):
        result = fl.run(methods=["fedavg", "local"], **CALL)
    assert dict(result.runs().set_index("method")["state"]) == {
        "fedavg": "complete",
        "local": "missing",
    }
    with pytest.raises(FedloomError, match="all runs failed:\nLocal"):
        fl.run(methods=["local"], **CALL)


@declare("global")
class Reading:
    """FedAvg whose loss reads a number into Python, which no stack can."""

    def build(self, context: BuildContext) -> Method:
        def term(forward: Forward) -> Tensor:
            loss = task_loss(forward)
            return loss * float(loss.detach() >= 0)

        return recipe(context, terms=(term,))


def test_a_method_that_cannot_be_stacked_is_told_of_or_refused(lab: Path) -> None:
    call = {**CALL, "methods": {"mine": {"method": Reading, "lr": [0.1, 0.2]}}}
    auto = {"execution": {"backend": "auto"}}
    with pytest.warns(UserWarning, match="cannot be stacked") as told:
        result = fl.run(**call, **auto)
    [line] = [str(warning.message) for warning in told]
    assert line.startswith("mine(lr=0.")
    assert "and 1 other bundle: clients are trained one after another, which is slower" in line
    assert [*result.runs()["state"]] == ["complete"] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # What is there is not trained, so that nothing is slower.
        fl.run(**call, **auto)
    problem = "mine.execution.backend: is stacked, but clients of mine cannot be stacked: .*Allowed"
    with pytest.raises(FedloomError, match=problem):
        fl.run(**call, execution={"backend": "stacked"})


def test_who_attacks_is_told_and_honest_clients_have_a_mean(lab: Path) -> None:
    """The mean is over clients that attack in no run, also for the run that nobody attacks."""
    attacks = {name: {"method": "fedavg"} for name in ("plain", "flipped", "noisy")}
    attacks["flipped"]["upload_filters"] = {"label-flip": {"share": 0.25}}
    attacks["noisy"]["upload_filters"] = {"gaussian": {"share": 0.5}}
    result = fl.run(methods=attacks, **{**CALL, "seeds": 2})
    rows = result_files.read(result.study, lab / "runs", lab / "results")[0]
    rows = rows.query("metric == 'accuracy' and split == 'test' and round == 6")
    attackers = {
        key: set(group.loc[group["attacks"], "client"])
        for key, group in rows.groupby(["method", "seed"])
    }
    for seed in (0, 1):
        drawn = attacker_mask(seed, 0.5, 4).nonzero().flatten().tolist()
        assert attackers["plain", seed] == set()
        assert attackers["noisy", seed] == set(drawn)
        assert attackers["flipped", seed] < set(drawn)
    assert attackers["noisy", 0] != attackers["noisy", 1]
    honest = [
        row["client"] not in attackers["noisy", row["seed"]] for row in rows.to_dict("records")
    ]
    expected = 100 * rows[honest].groupby(["method", "seed"])["value"].mean()
    page = result.report().read_text()
    table = page[page.index("Clients that do not attack") :]
    table = table[: table.index("</table>")]
    for method, mean in expected.groupby("method").mean().items():
        assert re.search(rf">{method}<.*?>{mean:.1f} ±", table, re.DOTALL), (method, mean)


def test_runs_that_diverge_are_told_of(lab: Path) -> None:
    with pytest.warns(UserWarning, match=r"diverged: fedavg at lr=1e\+30, 1 of 1 runs$") as told:
        result = fl.run(methods={"fedavg": {"lr": [1e30, 0.05]}}, **CALL)
    assert len(told) == 1
    store, results = Store(Path(result.settings.store)), Path(result.settings.results)
    assert all(run_check.find_problems(store, run, results) == [] for run in ids(result))


def test_pytorchs_state_does_not_reach_a_run(lab: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            result = fl.run(methods=["fedavg"], **CALL)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    again = fl.run(methods=["fedavg"], **CALL)
    assert ids(again) == ids(result)


def test_code_that_was_edited_after_its_import_is_not_trained(
    lab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = lab / "mylab"
    assert main.main(["new", "method", "mine", "--in", str(mine)]) == 0
    monkeypatch.setattr(run.plugins, "roots", lambda: {"mylab": mine})
    run.check_unedited()
    path = mine / "methods" / "mine.py"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(FedloomError, match=r"mine.py: was edited.*restart"):
        run.check_unedited()


def test_importing_the_package_imports_no_torch() -> None:
    script = "import fl, sys; fl.FedloomError; assert 'torch' not in sys.modules; print(dir(fl))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "'run'" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'rum'"):
        fl.rum  # noqa: B018


def test_a_log_has_no_bar_and_a_terminal_has(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(terminal: bool) -> str:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys.stderr, "isatty", lambda: terminal)
            made = display.ProgressBar(6, is_visible=True)
            made.describe("training")
            made.add_rounds(6)
            made.close()
        return capsys.readouterr().err

    assert shown(terminal=False) == ""
    assert "6/6" in shown(terminal=True)


def test_what_training_sets_on_a_gpu_ends_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.backends.cudnn.allow_tf32 = True
    with training.restored_settings():
        process_settings.prepare_gpu()
        torch.set_num_threads(2)
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cudnn.allow_tf32 and torch.get_num_threads() == 1
