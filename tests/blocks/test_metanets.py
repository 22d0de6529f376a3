"""What steers a personalisation, by hand and beside PyTorch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from fl.blocks.metanets import BNNet, LRNet, clamp_through, mixed_batch_norm, symmetric_kl


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_distance_is_that_of_normal_distributions() -> None:
    mean, other = drawn(5), drawn(5, seed=1)
    var, other_var = drawn(5, seed=2).square(), drawn(5, seed=3).square()
    one = Normal(mean, (var + 1e-5).sqrt())
    two = Normal(other, (other_var + 1e-5).sqrt())
    expected = (kl_divergence(one, two) / 2 + kl_divergence(two, one) / 2).mean()
    torch.testing.assert_close(symmetric_kl(mean, var, other, other_var), expected)
    torch.testing.assert_close(symmetric_kl(other, other_var, mean, var), expected)
    assert float(symmetric_kl(mean, var, mean, var)) == 0.0


def test_clamping_through_stops_values_but_no_gradient() -> None:
    x = torch.tensor([-0.3, 0.1, 0.7, 1.9], requires_grad=True)
    found = clamp_through(x, 0.0, 1.0)
    assert found.tolist() == [0.0, *x.tolist()[1:3], 1.0], "exactly, so that a rate of 0 is one"
    (found * torch.tensor([1.0, 2.0, 3.0, 4.0])).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [1.0, 2.0, 3.0, 4.0]


PRETRAINED = drawn(3, seed=4), drawn(3, seed=5).square() + 0.1
RUNNING = drawn(3, seed=6), drawn(3, seed=7).square() + 0.1
X = drawn(6, 3, 4, 2) * 2 + 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("x", [X, X[..., 0, 0]], ids=["images", "vectors"])
def test_all_of_ones_own_is_batch_normalisation_as_pytorch_does_it(
    x: Tensor, training: bool
) -> None:
    kind = nn.BatchNorm2d if x.dim() == 4 else nn.BatchNorm1d
    layer = kind(3, affine=False, dtype=torch.float64).train(training)
    layer.load_state_dict({"running_mean": RUNNING[0], "running_var": RUNNING[1]}, strict=False)
    expected = layer(x)
    found, running = mixed_batch_norm(x, 1.0, PRETRAINED, RUNNING, training)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(running[0], layer.running_mean)
    torch.testing.assert_close(running[1], layer.running_var)
    other, _ = mixed_batch_norm(x, 0.0, RUNNING, PRETRAINED, training)
    torch.testing.assert_close(other, layer.eval()(x) if not training else frozen(x))


def frozen(x: Tensor) -> Tensor:
    shape = (-1, *[1] * (x.dim() - 2))
    return (x - RUNNING[0].reshape(shape)) / (RUNNING[1].reshape(shape) + 1e-5).sqrt()


def test_a_mixture_by_hand() -> None:
    x = torch.tensor([[1.0], [3.0]])  # Mean 2, biased variance 1, unbiased 2.
    pretrained, running = (
        (torch.tensor([0.0]), torch.tensor([4.0])),
        (torch.zeros(1), torch.ones(1)),
    )
    found, after = mixed_batch_norm(x, 0.25, pretrained, running, True, momentum=0.5, eps=0.0)
    mean, var = 0.25 * 2, 0.75 * 4 + 0.25 * 1
    assert found.flatten().tolist() == pytest.approx([(v - mean) / var**0.5 for v in (1, 3)])
    assert [float(s) for s in after] == pytest.approx([1.0, 1.5])
    found, again = mixed_batch_norm(x, 0.25, pretrained, after, False, eps=0.0)
    mean, var = 0.25 * 1.0, 0.75 * 4 + 0.25 * 1.5
    assert found.flatten().tolist() == pytest.approx([(v - mean) / var**0.5 for v in (1, 3)])
    assert again is after


def test_beta_and_inputs_have_gradients_and_running_statistics_have_none() -> None:
    x, beta = X.clone().requires_grad_(), torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    def outcome(x: Tensor, beta: Tensor) -> Tensor:
        return mixed_batch_norm(x, beta, PRETRAINED, RUNNING, training=True)[0]

    assert torch.autograd.gradcheck(outcome, (x[:3, :, :2], beta))
    _, running = mixed_batch_norm(x, beta, PRETRAINED, RUNNING, training=True)
    assert not any(statistic.requires_grad for statistic in running)


@pytest.mark.parametrize(
    ("net", "begin", "high"), [(BNNet(4, 4), 0.5, 1.0), (LRNet(6, 9), 1.0, 1000.0)]
)
def test_meta_nets_begin_where_the_paper_says_and_stay_in_bounds(
    net: BNNet | LRNet, begin: float, high: float
) -> None:
    like = torch.zeros((), dtype=torch.float64)
    weights = net.init(torch.Generator().manual_seed(0), like)
    assert {w["weight"].dtype for w in weights.values()} == {torch.float64}
    assert [tuple(w["weight"].shape) for w in weights.values()] == [
        (100, net.inputs),
        (100, 100),
        (net.outputs, 100),
    ]
    assert all((w["bias"] == begin).all() for w in weights.values())
    middle = weights["1"]["weight"]
    assert float(middle.std()) == pytest.approx(0.1 * (2 / 200) ** 0.5, rel=0.05)
    found = net(weights, drawn(net.inputs))
    assert found.shape == (net.outputs,)
    assert float((found - begin).abs().max()) < 0.15 * begin + 0.1

    def shifted(by: float) -> Tensor:
        last = {**weights["2"], "bias": weights["2"]["bias"] + by}
        return net({**weights, "2": last}, drawn(net.inputs))

    assert shifted(-10.0).tolist() == [0.0] * net.outputs
    assert shifted(2000.0).tolist() == [high] * net.outputs


@pytest.mark.parametrize("begin", [0.2, 0.5, 0.8])
def test_a_sigmoid_begins_where_a_clamp_does(begin: float) -> None:
    like = torch.zeros((), dtype=torch.float64)
    net, bounded = BNNet(4, 4, begin), BNNet(4, 4, begin, sigmoid=True)
    weights, other = (n.init(torch.Generator().manual_seed(0), like) for n in (net, bounded))
    assert float((net(weights, drawn(4)) - begin).abs().max()) < 0.15
    assert float((bounded(other, drawn(4)) - begin).abs().max()) < 0.15
    far = {**other, "2": {**other["2"], "bias": other["2"]["bias"] + 3}}
    torch.testing.assert_close(
        torch.logit(bounded(far, drawn(4))), torch.logit(bounded(other, drawn(4))) + 3
    )
