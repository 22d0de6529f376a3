from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from fl.api import trees
from fl.api.method import BuildContext
from fl.api.network import Network
from fl.api.training import Training
from fl.base import registry
from fl.base.errors import ConfigError, FedloomError, Location
from fl.engine import engine
from fl.engine.batches import schedule
from fl.engine.sample_arrays import Arrays
from fl.engine.state import PhaseSchedule, RoundSchedule
from fl.methods.fedavg import FedAvg
from fl.methods.perfedavg import PerFedAvg
from fl.models.alexnet import AlexNet
from fl.models.cifar_cnn import CifarCNN
from fl.models.conv1d import Conv1d
from fl.models.convnet import ConvNet
from fl.models.densenet100 import DenseNet100
from fl.models.digits_cnn import DigitsCNN
from fl.models.lenet import LeNet
from fl.models.lstm import LSTM
from fl.models.matrix_factorisation import MatrixFactorisation
from fl.models.mlp import MLP
from fl.models.mobilenet_v3 import MobileNetV3
from fl.models.neural_lm import NeuralLM
from fl.models.resnet18 import ResNet18
from fl.models.resnet50 import ResNet50
from fl.models.resnet_cifar import ResNetCifar
from fl.models.swin_t import SwinT
from fl.models.text_cnn import TextCNN
from fl.models.text_transformer import TextTransformer
from fl.models.vit import ViT
from fl.plan import config
from fl.plan.expand import expand

SMALL, CIFAR = (3, 16, 16), (3, 32, 32)


def network(model, shape, classes=10, dtype=torch.float32):
    return Network(lambda: model.build(shape, classes), dtype)


def count(model, shape, classes):
    with torch.device("meta"):
        return sum(p.numel() for p in model.build(shape, classes).parameters())


def residual(classes):
    """Parameters of ResNet-18 after the stem: convolutions, batch norms, shortcuts, classifier."""
    total, before = 0, 64
    for width in (64, 128, 256, 512):
        total += 9 * before * width + 3 * 9 * width * width + 4 * 2 * width
        total += (before * width + 2 * width) * (before != width)
        before = width
    return total + classes * (512 + 1)


ALEXNET = sum(
    after * (before * k * k + 1) + 2 * after
    for before, after, k in ((3, 64, 11), (64, 192, 5), (192, 384, 3), (384, 256, 3), (256, 256, 3))
)
DIGITS = sum(after * (before * 25 + 3) for before, after in ((3, 64), (64, 64), (64, 128)))
SIZES = {
    "alexnet": (
        AlexNet(),
        (3, 256, 256),
        10,
        ALEXNET + 1024 * (9216 + 3) + 1024 * (1024 + 3) + 10 * 1025,
    ),
    "cifar-cnn": (
        CifarCNN(),
        CIFAR,
        10,
        32 * (3 * 25 + 1) + 64 * (32 * 25 + 1) + 2 * (32 + 64) + 2048 * 4097 + 10 * 2049,
    ),
    "conv1d": (
        Conv1d(),
        (6, 100),
        7,
        128 * (6 * 8 + 3) + 256 * (128 * 5 + 3) + 128 * (256 * 3 + 3) + 7 * 129,
    ),
    "convnet": (
        ConvNet(),
        CIFAR,
        10,
        3 * 9 * 128 + 2 * 128 * 128 * 9 + 9 * 128 + 20490,
    ),
    "densenet100": (DenseNet100(), CIFAR, 10, 769_162),
    "digits-cnn": (
        DigitsCNN(),
        (3, 28, 28),
        10,
        DIGITS + 2048 * (128 * 49 + 3) + 512 * (2048 + 3) + 10 * 513,
    ),
    "lenet": (LeNet(), CIFAR, 10, 62_006),
    "lstm": (LSTM(), (80,), 80, 817_872),
    "matrix-factorisation": (MatrixFactorisation(), (1,), 2, 10_000 * 16 + 2 * 17),
    "mlp": (MLP((8,)), (5,), 3, 8 * 6 + 3 * 9),
    "mlp normalised": (MLP((8,), "batch"), (5,), 3, 8 * 6 + 16 + 3 * 9),
    "mobilenet-v3": (MobileNetV3(), CIFAR, 10, 2_542_856 - 990 * 1025),
    "mobilenet-v3 large": (MobileNetV3("imagenet"), (3, 224, 224), 1000, 2_542_856),
    "neural-lm": (NeuralLM(), (80,), 80, 80 * 8 + 64 * (8 * 8 + 1) + 80 * 65),
    "resnet18": (ResNet18(), CIFAR, 10, 64 * 3 * 9 + 2 * 64 + residual(10)),
    "resnet18 grey": (ResNet18(), (1, 32, 32), 10, 64 * 9 + 2 * 64 + residual(10)),
    "resnet18 large": (ResNet18("imagenet"), (3, 224, 224), 1000, 11_689_512),
    "resnet50": (ResNet50("imagenet"), (3, 224, 224), 1000, 25_557_032),
    # As FedFM's tables have them, in thousands: 11,182 and 23,705.
    "resnet18 of FedFM": (ResNet18("imagenet"), CIFAR, 10, 11_181_642),
    "resnet50 of FedFM": (ResNet50(), CIFAR, 100, 23_705_252),
    "resnet-cifar": (ResNetCifar(blocks=3), CIFAR, 10, 272_474),
    "swin-t": (SwinT(), (3, 224, 224), 1000, 28_288_354),
    "text-cnn": (TextCNN(), (25,), 2, 10_001 * 300 + 100 * (300 * 12 + 3) + 2 * 301),
}
"""Models, shapes of inputs, classes, and the sizes that their papers give or that their layers add
up to.
"""


@pytest.mark.parametrize("name", SIZES)
def test_models_have_the_published_sizes(name):
    model, shape, classes, size = SIZES[name]
    assert count(model, shape, classes) == size


@pytest.mark.parametrize(
    ("model", "shape", "problem"),
    [
        (AlexNet(), (3, 62, 70), "at least 63 x 63"),
        (Conv1d(), CIFAR, "inputs are .3, 32, 32.. Allowed: series"),
        (Conv1d(kernels=(3,)), (6, 100), "there are 1 kernels for 3 channels"),
        (ConvNet(), (6,), "Allowed: .* at least 8 x 8"),
        (ResNet18(norm="group", weights="imagenet"), CIFAR, "norm is group, but the weights"),
        (NeuralLM(), (7,), "at least 8 tokens"),
        (TextCNN(), (4,), "at least 5 words"),
        (ViT(patch=5), CIFAR, "multiples of the patch, 5"),
    ],
)
def test_what_a_model_cannot_take_is_refused(model, shape, problem):
    with pytest.raises((ValueError, FedloomError), match=problem):
        model.build(shape, 10)


@pytest.mark.parametrize(
    "name",
    [
        *("cifar-cnn", "cnn", "convnet", "densenet100", "digits-cnn", "efficientnet-b0", "lenet"),
        *("logistic", "mlp", "mobilenet-v3", "resnet18", "resnet-cifar", "resnet50", "vit"),
    ],
)
def test_logits_of_images_depend_on_no_other_sample(name):
    made = network(registry.find("model", name, Location("")).target(), SMALL, classes=7)
    variables = made.init(0)
    x = torch.randn(3, *SMALL, generator=torch.Generator().manual_seed(1))
    output = made.eval(variables["params"], variables["buffers"], x)
    assert output.outputs.shape == (3, 7)
    assert output.features.shape[0] == 3
    alone = made.eval(variables["params"], variables["buffers"], x[1:2])
    assert torch.allclose(alone.outputs[0], output.outputs[1], atol=1e-5)


def test_convnet_is_three_blocks_with_instance_normalisation():
    made = network(ConvNet(), CIFAR)
    variables = made.init(0)
    x = torch.randn(2, *CIFAR, generator=torch.Generator().manual_seed(1))
    output = made.eval(variables["params"], variables["buffers"], x)
    assert output.features.shape == (2, 2048)
    h = x
    for block in range(3):
        weight, bias = (variables["params"][f"{4 * block}.{kind}"] for kind in ("weight", "bias"))
        h = torch.nn.functional.conv2d(h, weight, bias, padding=1)
        mean, sd = h.mean((2, 3), keepdim=True), h.var((2, 3), keepdim=True, correction=0)
        h = ((h - mean) / (sd + 1e-5).sqrt()).relu().unflatten(2, (-1, 2)).unflatten(4, (-1, 2))
        h = h.mean((3, 5))
    assert torch.allclose(h.flatten(1), output.features, atol=1e-5)


def test_conv1d_is_convolution_relu_and_the_mean_over_steps():
    made = network(Conv1d((4,), (3,), None), (2, 9), classes=5, dtype=torch.float64)
    params = made.init(0)["params"]
    x = torch.randn(3, 2, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    windows = torch.nn.functional.pad(x, (1, 1)).unfold(2, 3, 1)
    series = torch.einsum("bcsk,ock->bos", windows, params["0.weight"])
    features = (series + params["0.bias"][:, None]).relu().mean(2)
    expected = features @ params["4.weight"].T + params["4.bias"]
    output = made.eval(params, {}, x)
    assert torch.allclose(output.outputs, expected, atol=1e-12)
    assert torch.allclose(output.features, features, atol=1e-12)


def test_lenet_by_hand_on_the_smallest_image():
    # Weights of 1 in the first channel of each layer only: the sums can be written down.
    module = LeNet().build((1, 16, 16), 2)
    with torch.no_grad():
        for layer in module:
            for parameter in layer.parameters():
                parameter.zero_()
        for place in (0, 3):
            module[place].weight[0, 0] = 1
        for place in (7, 9, 11):
            module[place].weight[0, 0] = 1
        module[11].bias[1] = -2
        x = torch.zeros(1, 1, 16, 16)
        x[0, 0, 5, 5] = 1
        # The pixel lies in 25 of the 12 x 12 sums of 5 x 5, rows and columns 1 to 5, which touch
        # pooled rows and columns 0 to 2: 9 of the 6 x 6. Sums of 5 x 5 of these are all 9.
        assert module(x).tolist() == [[9, -2]]
        assert module(-x).tolist() == [[0, -2]]


def test_conv1d_is_the_same_stacked_and_in_a_loop():
    made = network(Conv1d((4, 3), (4, 3)), (2, 9), classes=4, dtype=torch.float64)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(12, 2, 9)), draw.integers(0, 4, 12)
    loop, stacked, begun = both_backends(FedAvg(), made, x, y)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-8) for a, b in zip(loop, stacked, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(loop, begun, strict=False))


DEEP = {
    "mobilenet-v3": MobileNetV3(),
    "vit": ViT(patch=2, dim=8, depth=2, heads=2, dropout=0.2),
}


def both_backends(method, made, x, y):
    """Leaves of the server and losses of two clients, the second of whom takes more steps; and the
    leaves that they began with.
    """
    training = Training(batch_size=4, local_epochs=1, precision="float64")
    built = method.build(BuildContext(made, training, 4, 2))
    identity = None if made.uses_tokens else {"scale": 1.0, "mean": 0.0, "sd": 1.0}
    samples = [np.arange(4), np.arange(4, 12)]
    batches = tuple(
        schedule(samples, [0, 1], training, 0, 1, keyed=made.random) for _ in built.passes
    )
    phase = PhaseSchedule(torch.arange(2), torch.tensor([4, 8]), batches)
    arrays = Arrays(x, y, identity, dtype=torch.float64)
    plan = RoundSchedule(1, (phase,), arrays, replace(training, lr=0.05))
    begun = engine.initial_state(built, made.init(0), torch.ones(2, 4, dtype=torch.int64))
    ends = []
    for backend in ("loop", "stacked"):
        state, losses = engine.run_round(built, begun, plan, backend)
        ends.append(trees.leaves({**state.server, "losses": losses}))
    return *ends, trees.leaves(begun.server)


@pytest.mark.parametrize("model", DEEP.values(), ids=DEEP)
def test_deep_models_are_the_same_stacked_and_in_a_loop(model):
    made = network(model, (3, 8, 8), classes=4, dtype=torch.float64)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(12, 3, 8, 8)), draw.integers(0, 4, 12)
    loop, stacked, begun = both_backends(FedAvg(), made, x, y)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-8) for a, b in zip(loop, stacked, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(loop, begun, strict=False))


# Vision transformer


def test_vit_knows_a_patch_by_its_place_alone():
    """Without positions, what the class token reads does not depend on the order of patches."""
    module = ViT(patch=4, dim=8, depth=1, heads=2).build((1, 8, 4), 3).double().eval()
    x = torch.randn(2, 1, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    swapped = x.roll(4, dims=2)
    assert not torch.allclose(module(swapped), module(x))
    with torch.no_grad():
        module.positions.zero_()
    torch.testing.assert_close(module(swapped), module(x), rtol=0, atol=1e-12)


# Models of tokens

WORDS = {
    "lstm": LSTM(7, 3, 4, 2),
    "matrix-factorisation": MatrixFactorisation(7, 3),
    "neural-lm": NeuralLM(7, 5, 3, 4),
    "text-cnn": TextCNN(7, 3, (2, 3), 4),
    "text-transformer": TextTransformer(7, 4, 2, 6, 2, 0.2),
}
every_text_model = pytest.mark.parametrize("model", WORDS.values(), ids=WORDS)


@every_text_model
def test_logits_of_tokens_depend_on_no_other_sample(model):
    made = network(model, (6,), classes=5)
    variables = made.init(0)
    x = torch.randint(0, 7, (3, 6), generator=torch.Generator().manual_seed(1))
    output = made.eval(variables["params"], variables["buffers"], x)
    assert output.outputs.shape == (3, 5)
    alone = made.eval(variables["params"], variables["buffers"], x[1:2])
    assert torch.allclose(alone.outputs[0], output.outputs[1], atol=1e-6)
    # Other tokens, other logits.
    other = made.eval(variables["params"], variables["buffers"], (x + 1) % 7)
    assert not torch.allclose(other.outputs, output.outputs)


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("text-cnn", FedAvg()),
        ("lstm", PerFedAvg()),
        ("matrix-factorisation", PerFedAvg()),
        ("neural-lm", PerFedAvg()),
        ("text-transformer", PerFedAvg()),
    ],
)
def test_models_of_tokens_are_the_same_stacked_and_in_a_loop(name, method):
    made = network(WORDS[name], (6,), classes=4, dtype=torch.float64)
    draw = np.random.default_rng(0)
    x, y = draw.integers(0, 7, (12, 6)), draw.integers(0, 4, 12)
    loop, stacked, begun = both_backends(method, made, x, y)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in zip(loop, stacked, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(loop, begun, strict=False))


def test_matrix_factorisation_is_products_of_vectors_and_means_of_several_items():
    module = MatrixFactorisation(7, 3, factor=2.0).build((1,), 2).double()
    item, user = 2 * module.embedding.weight, module.classifier.weight
    logits = module(torch.tensor([[4], [0]]))
    expected = [
        [(item[i] @ user[c] + module.classifier.bias[c]).item() for c in (0, 1)] for i in (4, 0)
    ]
    torch.testing.assert_close(logits, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(module(torch.tensor([[4, 0]]))[0], logits.mean(dim=0))
    wide = MatrixFactorisation(4000, 8).build((1,), 2).embedding.weight
    assert wide.std().item() == pytest.approx(0.01, rel=0.05)


def test_neural_lm_by_hand():
    module = NeuralLM(tokens=3, context=2, embedding=1, hidden=2).build((4,), 2).double()
    with torch.no_grad():
        module.embedding.weight[:, 0] = torch.tensor([0.0, 1.0, 10.0])
        module.hidden.weight.copy_(torch.tensor([[1.0, -1.0], [0.0, 0.5]]))
        module.hidden.bias.copy_(torch.tensor([0.0, 0.25]))
        module.classifier.weight.copy_(torch.tensor([[2.0, 0.0], [1.0, -1.0]]))
        module.classifier.bias.copy_(torch.tensor([0.0, 3.0]))
    # The last two tokens are 2 and 1, then 1 and 1, whatever stands before them.
    first, second = np.tanh([10 - 1, 0.5 + 0.25]), np.tanh([0, 0.75])
    expected = [[2 * a, a - b + 3] for a, b in (first, second)]
    logits = module(torch.tensor([[0, 2, 2, 1], [2, 0, 1, 1]])).tolist()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-12)


def test_lstm_is_that_of_pytorch():
    ours, theirs = LSTM(7, 3, 4, 2).build((6,), 5), torch.nn.LSTM(3, 4, 2, batch_first=True)
    with torch.no_grad():
        for i, layer in enumerate(ours.layers):
            getattr(theirs, f"weight_ih_l{i}").copy_(layer.input)
            getattr(theirs, f"weight_hh_l{i}").copy_(layer.state)
            getattr(theirs, f"bias_ih_l{i}").copy_(layer.bias)
            getattr(theirs, f"bias_hh_l{i}").zero_()
        x = torch.randint(0, 6, (5, 6))
        states, _ = theirs(ours.embedding(x))
        assert torch.allclose(ours(x), ours.classifier(states[:, -1]), atol=1e-6)


def test_lstm_reads_its_state_where_a_text_ends():
    module = LSTM(7, 3, 4, 2).build((40,), 5)
    text = torch.tensor([[3, 6, 1], [2, 4, 5]])
    padded = torch.cat([text, torch.full((2, 37), 6)], dim=1)
    torch.testing.assert_close(module(padded), module(text))
    other = LSTM(7, 3, 4, 2, padding=0).build((40,), 5)
    padded = torch.cat([text, torch.zeros(2, 37, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(other(padded), other(text))
    without_words = torch.full((2, 40), 6)
    torch.testing.assert_close(module(without_words), module(without_words[:, :1]))


def test_lstm_begins_with_open_forget_gates():
    for layer in LSTM(7, 3, 64, 2).build((6,), 5).layers:
        means = layer.bias.reshape(4, 64).mean(dim=1)
        torch.testing.assert_close(means, torch.tensor([0.0, 1, 0, 0]), rtol=0, atol=0.05)


def test_lstm_learns_short_texts():
    """Which of two cue words stands among six to twelve others, in texts filled up to 40."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randint(2, 30, (400, 40), generator=draw), torch.arange(400) % 2
    x[torch.arange(400), torch.randint(6, (400,), generator=draw)] = y
    x[torch.arange(40) >= torch.randint(6, 13, (400, 1), generator=draw)] = 30
    torch.manual_seed(0)
    module = LSTM(31, 8, 16, 1).build((40,), 2)
    optimizer = torch.optim.Adam(module.parameters(), 0.02)
    for batch in torch.arange(320).repeat(20).split(32):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x[batch]), y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        assert (module(x[320:]).argmax(1) == y[320:]).float().mean() > 0.9


def test_text_cnn_by_hand():
    module = TextCNN(tokens=3, width=1, kernels=(2, 3), channels=1).build((5,), 2)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        module.embedding.weight[:, 0] = torch.tensor([0.0, 1.0, 10.0])
        module.convolutions[0].weight.fill_(1)
        module.convolutions[1].weight[0, 0] = torch.tensor([1.0, -1.0, 0.0])
        module.convolutions[1].bias.fill_(-2)
        module.classifier.weight[0, 0] = module.classifier.weight[1, 1] = 1
        # Sums of two: 1, 11, 11, 2. Differences: -1, -9, 9, less 2.
        assert module(torch.tensor([[0, 1, 2, 1, 1]])).tolist() == [[11, 7]]
        assert module(torch.tensor([[0, 0, 0, 0, 1]])).tolist() == [[1, 0]]


def test_text_transformer_knows_words_by_their_places():
    made = network(TextTransformer(11, 8, 2, 12, 3), (2, 5), classes=4)
    variables = made.init(0)
    assert (made.random, made.uses_tokens) == (True, True)
    # The mean over positions: without learned ones, the order of words says nothing.
    params = {**variables["params"], "positions": torch.zeros(1, 10, 8)}
    x = torch.arange(10).reshape(1, 2, 5)
    backwards = made.eval(params, {}, x.flip(-1)).outputs
    torch.testing.assert_close(backwards, made.eval(params, {}, x).outputs, rtol=0, atol=1e-6)


@every_text_model
def test_several_texts_are_read_one_after_the_other(model):
    module = model.build((2, 3), 4).eval()
    x = torch.randint(0, 7, (5, 2, 3))
    assert module(x).equal(module(x.reshape(5, 6)))


# At plan time


def study(folder, **choices):
    written = {
        "datasets": ["digits"],
        "partitions": [{"homogeneous": {"clients": 2}}],
        "models": ["mlp"],
        "methods": {"fedavg": None},
        "seeds": [0],
    }
    (folder / "studies").mkdir()
    path = folder / "studies" / "tiny.yaml"
    path.write_text(yaml.safe_dump(written | choices, sort_keys=False))
    return expand(folder, "tiny", config.read_draft(folder, "tiny", Location("config.yaml")))


@pytest.mark.parametrize(
    ("dataset", "model", "problem"),
    [
        ("digits", "lenet", "lenet does not take the inputs of digits.*at least 16 x 16"),
        ("shakespeare", "mlp", "mlp does not take the inputs of shakespeare"),
        ({"sent140": {"vocabulary": 500}}, {"text-cnn": {"tokens": 500}}, "501 different tokens"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_runs(
    tmp_path, dataset, model, problem
):
    with pytest.raises(ConfigError, match=rf"tiny\.yaml: models\.0\..*{problem}"):
        study(tmp_path, models=[model], datasets=[dataset])
