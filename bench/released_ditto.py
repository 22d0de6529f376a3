"""Ditto and MK-MMD of FL4Health, as they are, on data sets of the study synthetic-13-0.5.

``python released_ditto.py FL4HEALTH FEDLOOM METHOD HEAD SEED`` trains the clients of FL4Health's
``research/synthetic_data`` under its own strategy, in one process and without a network, and prints
a line of JSON. FL4HEALTH is a clone (ce141b95), in whose environment this runs; FEDLOOM a folder in
which ``snakemake --until partition --config studies=synthetic-13-0.5`` wrote the data. METHOD is
``local`` (Ditto with lambda 0), ``ditto``, or ``mkmmd`` and its interval, as ``mkmmd-1``; HEAD is
``probabilities``, FL4Health's model, or ``logits``, the same without its last layer. SEED is that
of the data set. Rounds, batches and seeds are those of FL4Health, hyper-parameters those that the
paper names as best.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import DataLoader, TensorDataset

CLIENTS, ROUNDS, SEED = 8, 15, 2021
CONFIG = {"batch_size": 10, "local_epochs": 5, "n_server_rounds": ROUNDS, "n_clients": CLIENTS}
HEADS = ("probabilities", "logits")
LR, LAM, MU = 0.01, 0.1, 0.1
"""The paper's table 3 for Synthetic (0.5, 0.5); `MU` is that of MK-MMD."""


def samples(folder: Path, seed: int) -> list[dict[str, TensorDataset]]:
    """Return the samples of each client by part, ``train``, ``val`` or ``test``."""
    for path in (folder / "results" / "plan" / "partitions").glob("natural-*.json"):
        plan = json.loads(path.read_text())
        if (plan["spec"]["alpha"], plan["spec"]["seed"]) != (0.5, seed):
            continue
        prepared = folder / "data" / "prepared" / plan["dataset"]
        x, y = (np.load(prepared / f"{key}.npy") for key in "xy")
        table = pd.read_parquet(folder / "results" / "partitions" / path.stem / "partition.parquet")
        found: list[dict[str, TensorDataset]] = [{} for _ in range(CLIENTS)]
        for (client, part), rows in table.groupby(["client", "split"])["sample"]:
            inputs, labels = (torch.from_numpy(values[rows.to_numpy()]) for values in (x, y))
            found[int(str(client))][str(part)] = TensorDataset(inputs.flatten(1), labels)
        return found
    raise SystemExit(f"error: {folder} has no partition of synthetic with alpha 0.5, seed {seed}")


def make_client(method: str, number: int, parts: dict[str, TensorDataset]) -> Any:
    """Return FL4Health's client with samples of Fedloom."""
    from fl4health.metrics import Accuracy
    from research.synthetic_data.ditto import client as ditto
    from research.synthetic_data.ditto_mkmmd import client as mkmmd

    is_mkmmd = method.startswith("mkmmd")
    options: dict[str, Any] = {
        "data_path": Path(),
        "metrics": [Accuracy("accuracy")],
        "device": torch.device("cpu"),
        "client_number": number,
        "learning_rate": LR,
        "heterogeneity_level": 0.5,
    }
    if is_mkmmd:
        interval = int(method.removeprefix("mkmmd"))
        options |= {"mkmmd_loss_weight": MU, "beta_global_update_interval": interval}
        options |= {"mkmmd_loss_depth": 1, "feature_l2_norm_weight": 0.0}
    kind = mkmmd.SyntheticDittoClient if is_mkmmd else ditto.SyntheticDittoClient
    client = kind(**options)
    size = CONFIG["batch_size"]
    loaders = DataLoader(parts["train"], size, shuffle=True), DataLoader(parts["val"], size)
    client.get_data_loaders = lambda config: loaders
    client.get_test_data_loader = lambda config: None
    return client


def train(method: str, head: str, data: list[dict[str, TensorDataset]]) -> list[Any]:
    """Return the clients after the last round."""
    from fl4health.strategies.fedavg_with_adaptive_constraint import FedAvgWithAdaptiveConstraint
    from fl4health.utils.parameter_extraction import get_all_model_parameters
    from fl4health.utils.random import set_all_random_seeds
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from research.synthetic_data import model
    from research.synthetic_data.ditto import client as ditto
    from research.synthetic_data.ditto_mkmmd import client as mkmmd

    class Logits(model.FullyConnectedNet):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> Any:
            return self.linear_2(self.linear_1(x))

    network = Logits if head == "logits" else model.FullyConnectedNet
    ditto.FullyConnectedNet = mkmmd.FullyConnectedNet = network
    set_all_random_seeds(SEED)
    clients = [make_client(method, number, parts) for number, parts in enumerate(data)]
    strategy = FedAvgWithAdaptiveConstraint(
        initial_parameters=get_all_model_parameters(network()),
        initial_loss_weight=LAM if method == "ditto" else 0.0,
    )
    sent = strategy.initial_parameters
    for round_ in range(1, ROUNDS + 1):
        config = {**CONFIG, "current_server_round": round_}
        results = []
        for number, client in enumerate(clients):
            weights, count, _ = client.fit(parameters_to_ndarrays(sent), config)
            upload = ndarrays_to_parameters(weights)
            answer = FitRes(Status(Code.OK, ""), upload, count, {})
            results.append((SimpleNamespace(cid=str(number)), answer))
        sent, _ = strategy.aggregate_fit(round_, results, [])
    return clients


def accuracy(model: torch.nn.Module, samples: TensorDataset) -> float:
    """Return the share of samples that a model gets right."""
    x, y = samples.tensors
    with torch.no_grad():
        return float((model.eval()(x).argmax(1) == y).double().mean())


def main() -> None:
    """Train and print."""
    clone, folder, method, head, seed = sys.argv[1:]
    if not re.fullmatch(r"local|ditto|mkmmd-?\d+", method) or head not in HEADS:
        raise SystemExit(
            f"error: {method} {head}: local, ditto or mkmmd-1, with {' or '.join(HEADS)}"
        )
    sys.path.insert(0, clone)
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    data = samples(Path(folder), int(seed))
    begin = time.process_time()
    clients = train(method, head, data)
    tests = [parts["test"] for parts in data]
    own = [accuracy(client.model, part) for client, part in zip(clients, tests, strict=True)]
    told = {"method": method, "head": head, "seed": int(seed), "accuracy": own}
    told["seconds"] = round(time.process_time() - begin, 1)
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
