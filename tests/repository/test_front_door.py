"""The two methods with which docs/reference/api.md begins do what it says, by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hand_model import Samples, is_pair, of, s, trained
from plugging import use_methods

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "api.md"
ONE: list[Samples] = [[(1, 0)]]


@pytest.fixture(autouse=True)
def _lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's files in a plugin folder."""
    sources = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
    names = [re.findall(r"^class (\w+)", source, re.M)[0].lower() for source in sources]
    use_methods(dict(zip(names, sources, strict=True)), tmp_path, monkeypatch)


def test_the_penalty_changes_the_second_step_by_its_gradient() -> None:
    """The entropy is largest at equal logits, so it has no gradient in the first step."""
    state = trained(of("entropy", ONE, {"beta": 0.3}, rounds=1, local_steps=2))
    w = 0.1 * 0.5
    z = torch.tensor([w, -w], dtype=torch.float64, requires_grad=True)
    log_p = z.log_softmax(0)
    (log_p.exp() * log_p).sum().backward()
    assert z.grad is not None
    assert is_pair(state.server["params"]["weight"], w + 0.1 * (s(-2 * w) - 0.3 * float(z.grad[0])))


def test_the_server_moves_a_part_of_the_way() -> None:
    state = trained(of("partial", ONE, {"rate": 0.25}, rounds=1, local_steps=1))
    assert is_pair(state.server["params"]["weight"], 0.25 * 0.1 * 0.5)


def test_the_whole_way_is_fedavg() -> None:
    clients: list[Samples] = [[(1, 0), (2, 1)], [(3, 0)]]
    state = trained(of("partial", clients, {"rate": 1.0}, rounds=3))
    expected = trained(of("fedavg", clients, rounds=3))
    weight = expected.server["params"]["weight"]
    torch.testing.assert_close(state.server["params"]["weight"], weight, rtol=0, atol=1e-15)
