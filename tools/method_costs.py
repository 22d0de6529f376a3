"""Measure what each method sends, keeps and computes, and write docs/method-costs.md.

Every method is trained for ten rounds on handwritten digits in a temporary folder, which takes
about three minutes on two cores. Run ``python -m tools.method_costs`` in a clone.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import fl
from fl.api.method import MethodDeclaration, declaration_of
from fl.base import registry
from fl.base.errors import FedloomError, Location

PAGE = Path(__file__).resolve().parents[1] / "docs" / "method-costs.md"
REFERENCE = "fedavg"
ROUNDS = 10
STUDY: dict[str, Any] = {
    "dataset": "digits",
    "partition": {"dirichlet": {"clients": 8, "alpha": 0.5, "min_per_class": 1}},
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
products and convolutions of a client in a round. Server: its training steps in a round. A method
that starts from a stored model has that model's cost before its own. The model is `cnn` with
channels 8 and 16; numbers of methods that send features or prototypes depend on its width.

| method | evaluates | down | up | kept | operations | server | starts from or keys |
|---|---|---:|---:|---:|---:|---:|---|
"""


def main() -> None:
    """Measure all methods and write the page."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config"
        config.mkdir()
        (config / "config.yaml").write_text(
            f"results: {folder}/results\nstore: {folder}/runs\ndata: {folder}/data\n"
            "studies: [none]\n"
        )
        measured = {name: _measure(name, config) for name in registry.names("method")}
    rows = {name: row for name, row in measured.items() if not isinstance(row, str)}
    model, operations = rows[REFERENCE]["bytes_up"], rows[REFERENCE]["flops"]
    lines = []
    for name, row in rows.items():
        sizes = [row[key] / model for key in ("bytes_down", "bytes_up", "state_client")]
        works = [row[key] / operations for key in ("flops", "flops_server")]
        numbers = " | ".join(f"{value:.2f}" for value in (*sizes, *works))
        lines.append(
            f"| [`{name}`](methods.md#{name}) | {row['stages']} | {numbers} | {row['note']} |"
        )
    missing = [
        f"`{name}` ({reason})" for name, reason in measured.items() if isinstance(reason, str)
    ]
    text = HEAD + "\n".join(lines) + "\n"
    if missing:
        text += f"\nNot measured here: {'; '.join(missing)}.\n"
    PAGE.write_text(text, encoding="utf-8")


def _measure(name: str, config: Path) -> dict[str, Any] | str:
    """Train a method and return its costs, or the reason why it cannot be trained here."""
    declared = _declared(name)
    keys = {"method": name, "rounds": ROUNDS, "local_epochs": 1, **KEYS.get(name, {})}
    methods: dict[str, Any] = {"measured": keys}
    note = ", ".join(f"{key}: {value}" for key, value in KEYS.get(name, {}).items())
    if start := _start(name):
        methods["measured"] = {**keys, "start": start}
        note = f"from `{start}`"
    while start:
        keys, previous = {"rounds": 2, "local_epochs": 1}, _start(start)
        methods = {start: {**keys, "start": previous} if previous else keys, **methods}
        start = previous
    try:
        result = fl.run(name="costs", config=str(config), methods=methods, progress=False, **STUDY)
    except FedloomError as error:
        return str(error).split(". Try:")[0].split(": ", 2)[-1]
    runs = result.runs()
    [row] = runs[runs["method"] == "measured"].to_dict("records")
    costs = {str(key): value for key, value in row.items()}
    return {**costs, "stages": ", ".join(declared.stages), "note": note}


def _declared(name: str) -> MethodDeclaration:
    return declaration_of(registry.find("method", name, Location("tools")).target)


def _start(name: str) -> str:
    """Return the method from whose model a method starts here; empty if from none."""
    starts = _declared(name).starts
    return starts[0].replace("any", REFERENCE) if starts else ""


if __name__ == "__main__":
    main()
