"""The benchmarks measure what there is."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from bench import backends, gpu, methods, runs, scale, timing
from bench.released_rounds import pfllib, population
from bench.released_rounds.differences import largest_difference
from bench.released_rounds.edits import Edit
from bench.released_rounds.loaders import Feed
from bench.released_rounds.readers import by_name, statistics
from bench.workloads import CLASSES, WORKLOADS
from fl.base.errors import DataError
from fl.methods.fedavg import FedAvg
from fl.methods.fedsac import FedSaC

ROOT = Path(__file__).resolve().parents[2]

needs_a_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="no card here")


@pytest.mark.parametrize("name", WORKLOADS)
def test_fedloom_trains_the_network_that_others_are_held_to(name: str) -> None:
    work, model = WORKLOADS[name], timing.MODELS[name]()
    assert sum(w.numel() for w in model.parameters()) == work.weights
    assert model(torch.zeros(2, *work.shape)).shape == (2, CLASSES)
    x, y = work.draw()
    assert x.shape == (sum(work.sizes), *work.shape) and len(x) == len(y)
    assert len(work.sizes) == work.clients and max(work.sizes) == work.samples


def test_a_run_over_generated_data_has_the_samples_of_its_workload() -> None:
    shares = {"tests": 0.25, "validations": 0.5}
    run = timing.simulation(WORKLOADS["W4"], timing.MODELS["W4"], **shares)
    held = [run.client_data.samples[split] for split in ("train", "test", "val")]
    for samples, divisor in zip(held, (1, 4, 2), strict=True):
        assert [len(its) for its in samples] == (WORKLOADS["W4"].sizes // divisor).tolist()
    everything = np.concatenate([its for samples in held for its in samples])
    assert sorted(everything) == list(range(run.arrays.size))


def test_operations_of_a_method_are_those_of_its_steps() -> None:
    clients, steps, batch, first_layer, second_layer = 10, 10, 10, 64 * 64, 64 * 10
    forward = 2 * batch * (first_layer + second_layer)
    backward = 2 * batch * (first_layer + 2 * second_layer)
    assert methods._operations("fedavg", "mlp") == clients * steps * (forward + backward)


def test_what_auto_chooses_is_compared_with_every_backend() -> None:
    work = backends.work("tiny", 2, 16, (60,), 4)
    case = backends.Case(work, timing.MODELS["W1"], (1, 2), FedSaC(), steps=2)
    short, long = backends.rows(case, repeats=1)
    assert short.startswith("| FedSaC, tiny | ")
    cells = [cell.strip() for cell in short.strip("|").split("|")]
    loop, stacked, ratio = float(cells[1]), float(cells[2]), float(cells[-1])
    assert cells[-2] == "stacked" and loop > 0 and stacked > 0
    assert ratio == pytest.approx(max(1.0, stacked / loop), rel=0.05)
    assert "| 2 | stacked | " in long


def test_others_are_measured_with_the_same_torch() -> None:
    locked = (ROOT / "requirements.lock").read_text().splitlines()
    peers = (ROOT / "bench" / "requirements-peers.txt").read_text().splitlines()
    [torch_version] = [line for line in peers if line.startswith("torch==")]
    assert torch_version in locked


def test_the_checks_of_a_card_start_from_a_command() -> None:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--only", "none"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.endswith("|---|---|\n")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_a_card)])
def test_what_is_promised_of_a_card_is_checked(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "METHODS", ("fedavg",))
    bench = gpu.Bench(device, gpu.TINY)
    rows = [*bench.contract(), *bench.beside_cpu()]
    assert len(rows) == 4 and all("| holds: " in row for row in rows)
    monkeypatch.setattr(gpu, "LIMITS", {"float32": -1.0})
    assert "DOES NOT HOLD" in next(bench.contract())


def test_pfllib_gets_the_samples_of_every_client(tmp_path: Path) -> None:
    partition = pd.DataFrame(
        {
            "sample": [2, 0, 3, 1],
            "client": [0, 0, 1, 1],
            "split": ["train", "train", "test", "train"],
        }
    )
    (tmp_path / "results" / "partitions" / "p").mkdir(parents=True)
    partition.to_parquet(tmp_path / "results" / "partitions" / "p" / "partition.parquet")
    prepared = tmp_path / "data" / "prepared" / "digits"
    prepared.mkdir(parents=True)
    np.save(prepared / "x.npy", np.arange(8, dtype=np.uint8).reshape(4, 2))
    np.save(prepared / "y.npy", np.arange(4))
    about = {"normalisation": {"scale": 0.5, "mean": 1.0, "sd": 2.0}}
    (prepared / "dataset.json").write_text(json.dumps(about))
    runs.write_for_peer(tmp_path)
    folder = tmp_path / "dataset" / "MNIST"
    written = np.load(folder / "train" / "0.npz", allow_pickle=True)["data"].tolist()
    assert written["y"].tolist() == [0, 2]
    np.testing.assert_allclose(written["x"], [[-0.5, -0.25], [0.5, 0.75]])
    assert sorted(path.name for path in folder.glob("t*/*")) == ["0.npz", "1.npz", "1.npz"]


def test_an_evaluation_is_measured_beside_a_round() -> None:
    trained, scored = scale.evaluation(WORKLOADS["W4"], "W4", FedAvg(), tries=1)
    assert 0 < scored < trained


def test_rounds_of_many_clients_are_measured() -> None:
    case = scale.Case("SCAFFOLD", clients=40, samples=8, taking=3, rounds=4, every=2)
    cost = scale.measure(case)
    assert 3 < cost["took part"] <= 12
    assert cost["seconds"] > 0 < cost["memory"]


def test_the_whole_way_is_measured_command_by_command(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    costs = {name: cost for name, *cost in islice(scale.whole(folder, 120), 3)}
    assert list(costs) == ["plan", "prepare", "partition"]
    assert all(seconds > 0 and 0.01 < memory < 8 for seconds, memory in costs.values())
    [table] = folder.glob("results/partitions/*/partition.parquet")
    assert len(pd.read_parquet(table)) == 120 * 20


def test_rounds_beside_released_code_have_a_missing_class_and_half_of_the_clients() -> None:
    run = population.simulation(FedAvg(), "MLP")
    counts = run.class_counts()
    assert counts[0, population.MISSING_CLASS] == 0 and (counts[1:] > 0).all()
    assert counts.sum(1).tolist() == population.SIZES.tolist()
    trained = population.train(run)
    drawn = [phase.clients.tolist() for plan in trained.schedules for phase in plan.phases if phase]
    assert [len(clients) for clients in drawn] == [3, 3, 3]


def test_a_peer_gets_every_sample_of_a_client_once_an_epoch() -> None:
    run = population.simulation(FedAvg(), "CNN")
    feed = Feed(population.train(run).schedules, run.arrays)
    for client in feed.begin_round():
        loader = feed.loader(client)
        everything = sorted(float(x.sum()) for x, _ in feed.everything(client))
        epochs = [[float(x.sum()) for xs, _ in loader for x in xs] for _ in range(2)]
        assert sorted(epochs[0]) == sorted(epochs[1]) == pytest.approx(everything)
        assert epochs[0] != epochs[1]
        phase = feed.schedules[0].phases[-1]
        assert phase and phase.schedules[0]
        index = phase.schedules[0].index[phase.clients.tolist().index(client), 0]
        first = run.arrays.inputs(torch.from_numpy(index))
        torch.testing.assert_close(next(iter(loader))[0], first)


def test_a_copy_of_released_code_has_the_replaced_expressions(tmp_path: Path) -> None:
    for part in ("flcore", "utils"):
        (tmp_path / "system" / part).mkdir(parents=True)
    file = tmp_path / "system" / "flcore" / "penalty.py"
    file.write_text("value = abs(-3)\n")
    with pfllib.imported(tmp_path, [Edit("flcore/penalty.py", "abs(-3)", "(-3) ** 2")]):
        assert importlib.import_module("flcore.penalty").value == 9
    assert "flcore" not in sys.modules and file.read_text() == "value = abs(-3)\n"
    with (
        pytest.raises(ValueError, match=r"penalty.py: does not have 'abs\(3\)'"),
        pfllib.imported(tmp_path, [Edit("flcore/penalty.py", "abs(3)", "9")]),
    ):
        pass


def test_a_difference_beside_released_code_is_not_lost_where_one_is_no_number() -> None:
    zeros = torch.zeros(2, dtype=torch.float64)
    pairs = [(zeros, zeros + 0.5), (zeros, torch.tensor([torch.nan, 0], dtype=torch.float64))]
    assert largest_difference(pairs[:1]) == 0.5
    assert np.isnan(largest_difference(pairs)) and np.isnan(largest_difference(pairs[::-1]))
    with pytest.raises(ValueError, match=r"shapes are \[2\] and \[1\]"):
        largest_difference([(zeros, zeros[:1])])
    with pytest.raises(TypeError, match="float32"):
        largest_difference([(zeros, zeros.float())])


def test_running_statistics_are_paired_by_name() -> None:
    model = population.NETWORKS["CNN"]()
    *body, head = model.children()
    split = torch.nn.Sequential()
    split.base, split.head = torch.nn.Sequential(*body), head
    ours, theirs = statistics(model), statistics(split)
    assert list(ours) == [f"{layer}.running_{what}" for layer in (1, 5) for what in ("mean", "var")]
    backwards = dict(reversed(theirs.items()))
    assert all(first is second for first, second in by_name(ours, backwards))
    del backwards["5.running_var"]
    with pytest.raises(ValueError, match=r"one model has .*5.running_var, the other"):
        list(by_name(ours, backwards))


def test_released_code_of_another_commit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match="is no clone of PFLlib"):
        pfllib.check_commit(tmp_path / "nothing")
    file = tmp_path / "system" / "main.py"
    file.parent.mkdir()
    file.write_text("rounds = 3\n")

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.c")
        command = ("git", "-C", str(tmp_path), *identity, *arguments)
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    git("init")
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    with pytest.raises(DataError, match=f"has commit {head[:7]}, not {pfllib.COMMIT}"):
        pfllib.check_commit(tmp_path)
    monkeypatch.setattr(pfllib, "COMMIT", head[:7])
    pfllib.check_commit(tmp_path)
    file.write_text("rounds = 4\n")
    with pytest.raises(DataError, match=r"files differ from commit .*: system/main.py"):
        pfllib.check_commit(tmp_path)


def test_validation_samples_beside_released_code_are_those_of_our_clients() -> None:
    run = population.simulation(FedAvg(), "MLP")
    feed = Feed([], run.arrays)
    for client, index in enumerate(run.client_data.samples["val"]):
        x, y = feed.validation(client)
        torch.testing.assert_close(x, run.arrays.inputs(torch.from_numpy(index)))
        assert len(y) == population.VALIDATION
    trained = np.concatenate([*run.client_data.samples["train"]])
    assert not np.isin(np.concatenate([*run.client_data.samples["val"]]), trained).any()


def test_the_python_of_peers_is_a_path_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    python = tmp_path / "peers" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    parser = argparse.ArgumentParser()
    assert runs.program("peers/bin/python", parser) == str(python), "the link itself"
    assert Path(runs.program("sh", parser)).is_absolute()
    with pytest.raises(SystemExit):
        runs.program("nowhere/bin/python", parser)
    assert "--python: 'nowhere/bin/python'" in capsys.readouterr().err
