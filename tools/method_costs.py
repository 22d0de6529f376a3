"""Measure what each method sends, keeps and computes, and write docs/reference/method-costs.md.

Every method is trained for ten rounds on handwritten digits in a temporary folder, which takes
about three minutes on two cores. Run ``python -m tools.method_costs`` in a clone.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fl
from fl.api.method import MethodDeclaration, declaration_of
from fl.base import registry
from fl.base.errors import FedloomError, Location

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "method-costs.md"
REFERENCE = "fedavg"
ROUNDS = 10
PARTITION = {"clients": 8, "alpha": 0.5, "min_per_class": 1}
SERVER_PARTITION = {**PARTITION, "server": 0.1}
"""The partition of methods that train on samples of the server."""
STUDY: dict[str, Any] = {
    "dataset": "digits",
    "model": {"cnn": {"channels": [8, 16]}},
    "batch_size": 32,
    "lr": 0.05,
}
KEYS: dict[str, dict[str, Any]] = {
    "fedfa": {"layers": ["0", "4"]},
    "fedlgd": {"images": 1, "global_images": 2, "warmup": 2, "real": 8},
    "warm-up": {"images": 1, "steps": 10, "real": 8},
    "vhl": {"images": 4, "batch": 8},
}
"""Keys of methods that need some, or that would take long by their defaults."""

HEAD = f"""# What methods send, keep and compute

*Measured by `python -m tools.method_costs`: {ROUNDS} rounds on digits with eight clients, all of
which take part, a small convolutional network with batch normalisation, and each method's default
keys unless the last column names others.*

All numbers are relative to FedAvg: bytes to what a client uploads, operations to those of a client.
Down and up: what a client receives and sends in a round, mean over rounds. Kept: what stays with a
client between rounds; a memory of samples, as of kNN-Per, is not counted. Operations: matrix
products and convolutions of a client in a round. Server: its steps on what clients sent; those on
samples of its own are not counted. A method that starts from a stored model has that model's cost
before its own. The model is `cnn` with channels 8 and 16; numbers of methods that send features or
prototypes depend on its width.

| method | evaluates | down | up | kept | operations | server | starts from or keys |
|---|---|---:|---:|---:|---:|---:|---|
"""


def main() -> None:
    """Measure all methods and write the page."""
    names = registry.names("method")
    rows, missing = measured(names)
    text = HEAD + "\n".join(rows) + "\n"
    if missing:
        text += f"\nNot measured here: {'; '.join(missing)}.\n"
    PAGE.write_text(text, encoding="utf-8")


def measured(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the page's row of each method that can be trained here, and why the others cannot."""
    rows, missing = [], []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        config.mkdir()
        (config / "config.yaml").write_text(
            f"results: {folder}/results\nstore: {folder}/runs\ndata: {folder}/data\n"
            "studies: [none]\n"
        )
        fedavg: dict[bool, dict[str, Any]] = {}
        for name in names:
            at_server = _declared(name).needs_server_data
            partition = SERVER_PARTITION if at_server else PARTITION
            if at_server not in fedavg:
                fedavg[at_server] = _measure(REFERENCE, config, partition)
            try:
                row = _measure(name, config, partition)
            except FedloomError as error:
                reason = str(error).split(". Try:")[0].split(": ", 2)[-1]
                missing.append(f"`{name}` ({reason})")
                continue
            rows.append(_row(name, row, fedavg[at_server]))
    return rows, missing


def _row(name: str, row: dict[str, Any], fedavg: dict[str, Any]) -> str:
    sizes = [row[key] / fedavg["bytes_up"] for key in ("bytes_down", "bytes_up", "state_client")]
    works = [row[key] / fedavg["flops"] for key in ("flops", "flops_server")]
    numbers = [f"{value:.2f}" for value in (*sizes, *works)]
    if _declared(name).needs_server_data:
        numbers[-1] = "not counted"
    link = f"[`{name}`](methods.md#{name})"
    return f"| {' | '.join([link, row['stages'], *numbers, row['note']])} |"


@dataclass(frozen=True)
class Cost:
    """A method's cost in a round, relative to FedAvg's, as the page has it.

    Attributes:
        down: Bytes that a client receives.
        up: Bytes that a client sends.
        operations: Operations of a client.
    """

    down: str
    up: str
    operations: str


def costs() -> dict[str, Cost]:
    """Return the costs on the page, by method."""
    cells = (line.split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines())
    rows = {row[0].split("`")[1]: row for row in cells if row[0].startswith("| [`")}
    return {name: Cost(row[2], row[3], row[5]) for name, row in rows.items()}


def _measure(name: str, config: Path, partition: dict[str, Any]) -> dict[str, Any]:
    """Train a method and return its costs; a `FedloomError` says why it cannot be trained here."""
    declared = _declared(name)
    keys = {"method": name, "rounds": ROUNDS, "local_epochs": 1, **KEYS.get(name, {})}
    methods: dict[str, Any] = {"measured": keys}
    notes = [f"{key}: {value}" for key, value in KEYS.get(name, {}).items()]
    if "server" in partition:
        notes += [f"a partition with `server: {partition['server']}`"]
    if start := _start(name):
        methods["measured"] = {**keys, "start": start}
        notes = [f"from `{start}`"]
    while start:
        keys, previous = {"rounds": 2, "local_epochs": 1}, _start(start)
        methods = {start: {**keys, "start": previous} if previous else keys, **methods}
        start = previous
    study = {**STUDY, "partition": {"dirichlet": partition}}
    result = fl.run(name="costs", config=str(config), methods=methods, progress=False, **study)
    runs = result.runs()
    [row] = runs[runs["method"] == "measured"].to_dict("records")
    costs = {str(key): value for key, value in row.items()}
    return {**costs, "stages": ", ".join(declared.stages), "note": ", ".join(notes)}


def _declared(name: str) -> MethodDeclaration:
    return declaration_of(registry.find("method", name, Location("tools")).target)


def _start(name: str) -> str:
    """Return the method from whose model a method starts here; empty if from none."""
    starts = _declared(name).starts
    return starts[0].replace("any", REFERENCE) if starts else ""


if __name__ == "__main__":
    argparse.ArgumentParser("python -m tools.method_costs", description=__doc__).parse_args()
    main()
