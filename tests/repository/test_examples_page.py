"""The methods on the page of examples: each gives the weights of the registry's method."""

from __future__ import annotations

import io
import re
import tokenize
from pathlib import Path
from typing import Any

import pytest
import torch
from hand_model import Samples, of, tensor, trained
from plugging import use_methods

from fl.api import trees
from fl.base import plugins
from fl.engine.simulation import Simulation
from fl.engine.state import State

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "examples.md").read_text()
SOURCES = dict(
    re.findall(r"```python\n# mylab/methods/(my_\w+)\.py\n(.*?)^```$", PAGE, re.S | re.M)
)
CLIENTS: list[Samples] = [[(1, 0), (2, 1), (-1, 2)], [(3, 0), (0.5, 2)], [(-2, 1)]]
KEYS: dict[str, dict[str, Any]] = {"fedala": {"start_epochs": 1}, "fedntd": {"beta": 0.5}}
"""Keys of the registry's method with which it is the page's."""
BEGIN = {
    "params": {
        "0.weight": tensor([[0.7], [0.3]]),
        "1.weight": tensor([[0.4, 0.1], [-0.1, 0.2], [0.2, -0.3]]),
    },
    "buffers": {},
}
PAGE_KEYS: dict[str, dict[str, Any]] = {"fedntd": {"beta": 0.5}}


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_methods(SOURCES, tmp_path, monkeypatch)


def network() -> torch.nn.Module:
    """Two features, so that a cosine has a gradient, and three classes."""
    linear = torch.nn.Linear
    return torch.nn.Sequential(linear(1, 2, bias=False), linear(2, 3, bias=False))


@pytest.mark.parametrize("name", ["fedper", "fedntd", "moon", "fedala"])
def test_the_page_has_the_registrys_numbers(name: str) -> None:
    training = {"make": network, "classes": 3, "rounds": 4, "local_steps": 2, "lr": 0.3}
    training["batch_size"] = 3
    page = of(f"my-{name}", CLIENTS, PAGE_KEYS.get(name), **training)
    registered = of(name, CLIENTS, KEYS.get(name), **training)
    fedavg = of("fedavg", CLIENTS, **training)
    found, expected, plain = (
        _models(each, trained(each, BEGIN)) for each in (page, registered, fedavg)
    )
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(found, plain, rtol=0, atol=1e-3)


def _models(simulation: Simulation, state: State) -> torch.Tensor:
    """Return the weights that each client is scored with, one row a client."""
    [view] = simulation.method.views.values()
    models = [
        view(state.server, trees.take(state.clients, client))["params"]
        for client in range(len(CLIENTS))
    ]
    return torch.stack([torch.cat([w.flatten() for w in trees.leaves(m)]) for m in models])


@pytest.mark.parametrize("name", ["fedper", "fedntd", "moon", "fedala"])
def test_the_page_counts_its_lines(name: str) -> None:
    [row] = re.findall(rf"\| {name} \| (\d+) \| (\d+) \| (\d+) \|", PAGE, re.I)
    here, registered, peer = map(int, row)
    file = plugins.FL / "methods" / f"{name}.py"
    assert (here, registered) == (_lines(SOURCES[f"my_{name}"]), _lines(file.read_text()))
    assert here < registered < peer


def _lines(source: str) -> int:
    """Return the number of lines with code, docstrings left out."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    layout = (tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER)
    space, lines, before = (*layout, tokenize.INDENT, tokenize.DEDENT), set[int](), tokenize.NEWLINE
    for token in tokens:
        begins = before in (tokenize.NEWLINE, tokenize.INDENT)
        is_docstring = token.type == tokenize.STRING and begins
        if token.type not in space and not is_docstring:
            lines.update(range(token.start[0], token.end[0] + 1))
        if token.type not in (tokenize.NL, tokenize.COMMENT, tokenize.DEDENT):
            before = token.type
    return len(lines)
