from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import yaml

from fl.api import trees
from fl.api.method import Setting
from fl.api.network import Network
from fl.api.training import Training
from fl.base import registry
from fl.base.errors import ConfigError, FedloomError, Where
from fl.engine import engine
from fl.engine.arrays import Arrays
from fl.engine.batches import schedule
from fl.engine.state import Roster, RoundPlan
from fl.methods.fedavg import FedAvg
from fl.methods.perfedavg import PerFedAvg
from fl.models.cifar_cnn import CifarCNN
from fl.models.convnet import ConvNet, Halving
from fl.models.lenet import LeNet
from fl.models.lstm import LSTM
from fl.models.mobilenet_v3 import MobileNetV3
from fl.models.resnet18 import ResNet18
from fl.models.resnet_cifar import ResNetCifar
from fl.models.text_cnn import TextCNN
from fl.models.text_transformer import TextTransformer
from fl.models.vit import ViT
from fl.plan.expand import expand

SMALL, CIFAR = (3, 16, 16), (3, 32, 32)


def network(model, shape, classes=10, dtype=torch.float32):
    return Network(lambda: model.build(shape, classes), dtype)


def count(model, shape, classes):
    with torch.device("meta"):
        return sum(p.numel() for p in model.build(shape, classes).parameters())


def shapes(variables):
    return {name: tuple(p.shape) for name, p in variables["params"].items()}


# Every model


@pytest.mark.parametrize(
    "name",
    [
        *("cifar-cnn", "cnn", "convnet", "densenet100", "digits-cnn", "efficientnet-b0", "lenet"),
        *("logistic", "mlp", "mobilenet-v3", "resnet18", "resnet-cifar", "resnet50", "vit"),
    ],
)
def test_logits_of_images_depend_on_no_other_sample(name):
    made = network(registry.find("model", name, Where("")).target(), SMALL, classes=7)
    variables = made.init(0)
    x = torch.randn(3, *SMALL, generator=torch.Generator().manual_seed(1))
    output = made.eval(variables["params"], variables["buffers"], x)
    assert output.outputs.shape == (3, 7)
    assert output.features.shape[0] == 3
    alone = made.eval(variables["params"], variables["buffers"], x[1:2])
    assert torch.allclose(alone.outputs[0], output.outputs[1], atol=1e-5)
    again, other = (trees.leaves(made.init(seed)["params"])[0] for seed in (0, 1))
    first = trees.leaves(variables["params"])[0]
    assert first.equal(again)
    assert not first.equal(other)


@pytest.mark.parametrize("name", registry.names("model"))
def test_every_file_says_what_it_is_and_whose(name):
    entry = registry.find("model", name, Where(""))
    assert entry.summary.endswith(".")
    assert entry.citation


# ConvNet


def test_convnet_is_three_blocks_with_instance_normalisation():
    made = network(ConvNet(), CIFAR)
    assert count(ConvNet(), CIFAR, 10) == 3 * 9 * 128 + 2 * 128 * 128 * 9 + 9 * 128 + 20490
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


@pytest.mark.parametrize("shape", [(6,), (3, 7, 32)])
def test_convnet_refuses_what_is_no_image_or_too_small(shape):
    with pytest.raises(FedloomError, match="allowed: images of at least 8 x 8"):
        ConvNet().build(shape, 10)


# LeNet


def test_lenet_has_the_layers_it_says():
    made = network(LeNet(), CIFAR)
    assert shapes(made.init(0)) == {
        "0.weight": (6, 3, 5, 5),
        "0.bias": (6,),
        "3.weight": (16, 6, 5, 5),
        "3.bias": (16,),
        "7.weight": (120, 400),
        "7.bias": (120,),
        "9.weight": (84, 120),
        "9.bias": (84,),
        "11.weight": (10, 84),
        "11.bias": (10,),
    }
    assert made.head == {"11.weight", "11.bias"}
    assert made.names["buffers"] == []


def test_lenet_parameters_by_hand():
    body = 6 * (3 * 25 + 1) + 16 * (6 * 25 + 1) + 84 * (120 + 1)
    assert count(LeNet(), CIFAR, 10) == body + 120 * (16 * 5 * 5 + 1) + 10 * 85 == 62_006
    assert count(LeNet(), SMALL, 7) == body + 120 * (16 + 1) + 7 * 85
    # 28 -> 24 -> 12 -> 8 -> 4 and 20 -> 16 -> 8 -> 4 -> 2, of one channel.
    assert count(LeNet(), (1, 28, 20), 10) == body - 6 * 50 + 120 * (16 * 4 * 2 + 1) + 10 * 85


def test_lenet_features_are_84_and_the_head_is_linear_in_them():
    made = network(LeNet(), SMALL)
    variables = made.init(3)
    params = variables["params"]
    output = made.train(params, {}, torch.rand(5, *SMALL))
    assert output.features.shape == (5, 84)
    assert (output.features >= 0).all()
    assert (output.features > 0).any()
    logits = output.features @ params["11.weight"].T + params["11.bias"]
    assert torch.allclose(output.outputs, logits, atol=1e-6)


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


# ResNet-18


def stages(classes):
    """Parameters after the stem: 3x3 convolutions, batch norms, shortcuts, classifier."""
    total, before = 0, 64
    for width in (64, 128, 256, 512):
        total += 9 * before * width + 3 * 9 * width * width + 4 * 2 * width
        if before != width:
            total += before * width + 2 * width
        before = width
    return total + classes * (512 + 1)


def test_resnet18_parameters_by_hand():
    cifar = 64 * 3 * 9 + 2 * 64 + stages(10)
    imagenet = 64 * 3 * 49 + 2 * 64 + stages(1000)
    assert count(ResNet18(), CIFAR, 10) == cifar == 11_173_962
    assert count(ResNet18("imagenet"), (3, 224, 224), 1000) == imagenet == 11_689_512
    assert count(ResNet18(), (1, 32, 32), 10) == cifar - 64 * 2 * 9
    assert count(ResNet18("imagenet"), (1, 32, 32), 1000) == imagenet - 64 * 2 * 49


@pytest.mark.parametrize(("stem", "sides"), [("cifar", (32, 32, 4)), ("imagenet", (16, 8, 1))])
def test_resnet18_stems_keep_or_quarter_the_image(stem, sides):
    with torch.device("meta"):
        module = ResNet18(stem).build(CIFAR, 10).eval()
        x = module.conv1(torch.empty(1, *CIFAR))
        seen = [x.shape[-1]]
        x = module.maxpool(x)
        seen.append(x.shape[-1])
        for stage in (module.layer1, module.layer2, module.layer3, module.layer4):
            x = stage(x)
    assert (*seen, x.shape[-1]) == sides


def test_resnet18_head_features_and_batch_norm():
    made = network(ResNet18(), (3, 8, 8), classes=4)
    assert made.head == {"fc.weight", "fc.bias"}
    # One in the stem, two in each of eight blocks, one in each of three shortcuts.
    assert len(made.batch_norm) == 20 * 5
    variables = made.init(0)
    output = made.train(variables["params"], variables["buffers"], torch.rand(2, 3, 8, 8))
    assert (output.outputs.shape, output.features.shape) == ((2, 4), (2, 512))
    assert int(output.buffers["bn1.num_batches_tracked"]) == 1
    assert int(variables["buffers"]["bn1.num_batches_tracked"]) == 0


@pytest.mark.parametrize(("stem", "depth", "kernel"), [("cifar", 3, 3), ("imagenet", 1, 7)])
def test_resnet18_new_first_convolution_is_initialised_like_the_others(stem, depth, kernel):
    weight = network(ResNet18(stem), (depth, 8, 8)).init(0)["params"]["conv1.weight"]
    # Kaiming, fan out, ReLU: variance 2 / (64 kernel^2).
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (64 * kernel**2)), rel=0.05)


COUNTS = torch.ones(2, 4, dtype=torch.int64)
"""Class counts of two clients."""


DEEP = {
    "resnet18": ResNet18(),
    "mobilenet-v3": MobileNetV3(),
    "vit": ViT(patch=2, dim=8, depth=2, heads=2, dropout=0.2),
}


@pytest.mark.parametrize("model", DEEP.values(), ids=DEEP)
def test_deep_models_are_the_same_stacked_and_in_a_loop(model):
    made = network(model, (3, 8, 8), classes=4, dtype=torch.float64)
    rng = np.random.default_rng(0)
    identity = {"scale": 1.0, "mean": 0.0, "sd": 1.0}
    x, y = rng.normal(size=(12, 3, 8, 8)), rng.integers(0, 4, 12)
    arrays = Arrays(x, y, identity, dtype=torch.float64)
    training = Training(batch_size=4, local_epochs=1, precision="float64")
    method = FedAvg().build(Setting(made, training, 4, 2))
    # The second client takes two steps, the first one.
    held = [np.arange(4), np.arange(4, 12)]
    batches = schedule(held, [0, 1], training, 0, 1, keyed=made.random)
    roster = Roster(torch.arange(2), torch.tensor([4, 8]), (batches,))
    plan = RoundPlan(1, (roster,), arrays, lr=0.05)
    variables = made.init(0)
    ends = {}
    for backend in ("loop", "stacked"):
        state, losses = engine.run_round(
            method, engine.start(method, variables, COUNTS), plan, backend
        )
        ends[backend] = trees.leaves({**state.server, "losses": losses})
    for one, other in zip(*ends.values(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-8)
    start = trees.leaves({**variables, "losses": torch.zeros(2)})
    assert not any(torch.equal(a, b) for a, b in zip(ends["loop"], start, strict=True))


# MobileNetV3-Small


def test_mobilenet_v3_has_the_published_size_and_a_head_of_1024_features():
    # Howard et al. 2019, table 3: 2.5 million parameters.
    imagenet = count(MobileNetV3("imagenet"), (3, 224, 224), 1000)
    assert imagenet == 2_542_856
    assert count(MobileNetV3(), CIFAR, 10) == imagenet - 990 * 1025
    assert count(MobileNetV3("imagenet"), (1, 32, 32), 1000) == imagenet - 2 * 16 * 9
    made = network(MobileNetV3(), CIFAR)
    assert made.head == {"classifier.3.weight", "classifier.3.bias"}
    assert made.random


@pytest.mark.parametrize(("stem", "sides"), [("cifar", (32, 2)), ("imagenet", (16, 1))])
def test_mobilenet_v3_stems_keep_or_halve_the_image(stem, sides):
    with torch.device("meta"):
        module = MobileNetV3(stem).build(CIFAR, 10).eval()
        x = torch.empty(1, *CIFAR)
        assert (module.features[0](x).shape[-1], module.features(x).shape[-1]) == sides


# Vision transformer


def layer_size(dim, hidden):
    """Of an encoder layer: attention in and out, two linear maps, two normalisations."""
    return 4 * dim * (dim + 1) + hidden * (dim + 1) + dim * (hidden + 1) + 4 * dim


def test_vit_by_its_layers():
    made = network(ViT(patch=8, dim=16, depth=3, heads=2, mlp_ratio=1.5), (3, 32, 16))
    positions = 1 + 4 * 2
    expected = 16 * (3 * 64 + 1) + 16 + positions * 16 + 3 * layer_size(16, 24) + 2 * 16 + 170
    variables = made.init(0)
    assert sum(p.numel() for p in variables["params"].values()) == expected
    assert made.head == {"classifier.weight", "classifier.bias"}
    assert not made.random
    output = made.eval(variables["params"], {}, torch.rand(2, 3, 32, 16))
    assert output.features.shape == (2, 16)
    # Layers do not begin as copies of one another.
    first, second = (variables["params"][f"layers.{i}.linear1.weight"] for i in (0, 1))
    assert not first.equal(second)


def test_vit_knows_a_patch_by_its_place_alone():
    """Without positions, what the class token reads does not depend on the order of patches."""
    module = ViT(patch=4, dim=8, depth=1, heads=2).build((1, 8, 4), 3).double().eval()
    x = torch.randn(2, 1, 8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    swapped = x.roll(4, dims=2)
    assert not torch.allclose(module(swapped), module(x))
    with torch.no_grad():
        module.positions.zero_()
    torch.testing.assert_close(module(swapped), module(x), rtol=0, atol=1e-12)


def test_vit_drops_tokens_and_linear_layers_but_no_attention():
    layer = ViT(dropout=0.3).build(CIFAR, 10).layers[0]
    assert (layer.self_attn.dropout, layer.dropout.p, layer.dropout1.p) == (0, 0.3, 0.3)
    assert network(ViT(dropout=0.3), CIFAR).random


def test_vit_refuses_what_does_not_divide():
    with pytest.raises(ValueError, match="multiples of the patch, 5"):
        ViT(patch=5).build(CIFAR, 10)
    with pytest.raises(ValueError, match="3 heads do not divide a width of 128"):
        ViT(heads=3).build(CIFAR, 10)


# Models of tokens

WORDS = {
    "lstm": LSTM(7, 3, 4, 2),
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


@every_text_model
@pytest.mark.parametrize("method", [FedAvg(), PerFedAvg()], ids=["first-order", "second-order"])
def test_models_of_tokens_are_the_same_stacked_and_in_a_loop(model, method):
    made = network(model, (6,), classes=4, dtype=torch.float64)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 7, (12, 6)), rng.integers(0, 4, 12)
    training = Training(batch_size=4, local_epochs=2, precision="float64")
    built = method.build(Setting(made, training, 4, 2))
    arrays = Arrays(x, y, None, dtype=torch.float64)
    held = [np.arange(4), np.arange(4, 12)]
    batches = tuple(schedule(held, [0, 1], training, 0, 1, keyed=made.random) for _ in built.passes)
    plan = RoundPlan(1, (Roster(torch.arange(2), torch.tensor([4, 8]), batches),), arrays, lr=0.5)
    variables = made.init(0)
    ends = {}
    for backend in ("loop", "stacked"):
        state, losses = engine.run_round(
            built, engine.start(built, variables, COUNTS), plan, backend
        )
        ends[backend] = trees.leaves({**state.server, "losses": losses})
    for one, other in zip(*ends.values(), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)
    moved = trees.leaves(state.server)
    start = trees.leaves(engine.start(built, variables, COUNTS).server)
    assert not any(torch.equal(a, b) for a, b in zip(moved, start, strict=True))


def test_lstm_is_that_of_pytorch():
    ours, theirs = LSTM(7, 3, 4, 2).build((6,), 5), torch.nn.LSTM(3, 4, 2, batch_first=True)
    with torch.no_grad():
        for i, layer in enumerate(ours.layers):
            getattr(theirs, f"weight_ih_l{i}").copy_(layer.input)
            getattr(theirs, f"weight_hh_l{i}").copy_(layer.state)
            getattr(theirs, f"bias_ih_l{i}").copy_(layer.bias)
            getattr(theirs, f"bias_hh_l{i}").zero_()
        x = torch.randint(0, 7, (5, 6))
        states, _ = theirs(ours.embedding(x))
        assert torch.allclose(ours(x), ours.classifier(states[:, -1]), atol=1e-6)


def test_lstm_parameters_by_hand():
    # LEAF's: 80 characters in 8 dimensions, two layers of 256, 80 characters to choose from.
    first, second = 4 * 256 * (8 + 256 + 1), 4 * 256 * (256 + 256 + 1)
    assert count(LSTM(), (80,), 80) == 80 * 8 + first + second + 80 * 257 == 817_872
    weight = network(LSTM(), (80,)).init(0)["params"]["layers.0.state"]
    assert weight.abs().max().item() == pytest.approx(1 / 16, rel=0.001)
    assert weight.mean().item() == pytest.approx(0, abs=0.001)


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
    assert count(TextCNN(), (25,), 2) == 10_001 * 300 + 100 * (300 * 12 + 3) + 2 * 301


def test_text_transformer_by_its_layers():
    made = network(TextTransformer(11, 8, 2, 12, 3), (2, 5), classes=4)
    expected = 11 * 8 + 10 * 8 + 3 * layer_size(8, 12) + 4 * 9
    variables = made.init(0)
    assert sum(p.numel() for p in variables["params"].values()) == expected
    assert (made.random, made.of_tokens) == (True, True)
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


def test_text_cnn_refuses_texts_shorter_than_its_convolutions():
    with pytest.raises(ValueError, match="at least 5 words"):
        TextCNN().build((4,), 2)


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
    return expand(folder, "tiny", Where("config.yaml"))


def test_lenet_on_images_that_are_too_small_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError) as error:
        study(tmp_path, models=["lenet"])
    for part in (
        "tiny.yaml: models.0.lenet: lenet does not take the inputs of digits",
        "shape (1, 8, 8)",
        "images must be at least 16 x 16",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize("model", ["lenet", "resnet18"])
def test_images_are_asked_of_synthetic_in_vain(tmp_path, model):
    with pytest.raises(ConfigError, match=rf"{model} does not take the inputs of synthetic, of sh"):
        study(tmp_path, models=[model], datasets=["synthetic"])


def test_unknown_stem_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"models\.0\.resnet18\.stem: .*allowed: cifar, imagenet"):
        study(tmp_path, models=[{"resnet18": {"stem": "mnist"}}])


def test_domains_and_their_models_are_planned(tmp_path):
    expansion = study(
        tmp_path,
        datasets=["digits-domains"],
        partitions=["domain", {"domain-dirichlet": {"clients_per_domain": 2, "alpha": 0.5}}],
        models=["lenet", {"resnet18": {"stem": "cifar"}}],
    )
    assert {(run.partition.text, run.model.text) for run in expansion.runs} == {
        (partition, model)
        for partition in ("domain", "domain-dirichlet(clients_per_domain=2, alpha=0.5)")
        for model in ("lenet", "resnet18(stem=cifar)")
    }
    assert len({run.id for run in expansion.runs}) == 4


def test_the_cnn_of_cifar_has_the_layers_that_constraints_tap():
    made = network(CifarCNN(), CIFAR)
    count_of = sum(leaf.numel() for leaf in trees.leaves(made.init(0)["params"]))
    convolutions = 32 * (3 * 25 + 1) + 64 * (32 * 25 + 1) + 2 * (32 + 64)
    assert count_of == convolutions + 2048 * (64 * 64 + 1) + 10 * (2048 + 1)
    made.tap(["features", "block2", "block1"])
    variables = made.init(0)
    x = torch.randn(2, *CIFAR, generator=torch.Generator().manual_seed(1))
    output = made.eval(variables["params"], variables["buffers"], x)
    widths = {name: tap.shape[1] for name, tap in output.taps.items()}
    assert widths == {"block1": 32 * 32 * 32, "block2": 64 * 16 * 16, "features": 2048}
    assert all(float(tap.min()) == 0 for tap in output.taps.values()), "what comes out of a ReLU"
    assert torch.equal(output.taps["features"], output.features)


def test_a_vocabulary_that_a_model_does_not_know_is_refused_before_anything_runs(tmp_path):
    with pytest.raises(ConfigError) as error:
        study(
            tmp_path,
            datasets=[{"sent140": {"vocabulary": 500}}],
            models=[{"text-cnn": {"tokens": 500}}],
        )
    for part in ("models.0.text-cnn", "sent140(vocabulary=500)", "501 different tokens"):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("dataset", "model"),
    [("shakespeare", "mlp"), ("digits", "lstm"), ("digits", "text-cnn"), ("shakespeare", "vit")],
)
def test_tokens_are_for_models_of_tokens_and_numbers_for_the_others(tmp_path, dataset, model):
    with pytest.raises(ConfigError, match=f"{model} does not take the inputs of {dataset}"):
        study(tmp_path, datasets=[dataset], models=[model])


@pytest.mark.parametrize(
    ("dataset", "model"),
    [("shakespeare", "lstm"), ("sent140", "text-cnn"), ("sent140", "text-transformer")],
)
def test_defaults_of_models_of_tokens_fit_their_data_sets(tmp_path, dataset, model):
    assert study(tmp_path, datasets=[dataset], models=[model])


def test_a_small_residual_network_has_the_layers_of_its_paper():
    """6 n + 2 of them, counted without shortcuts; He et al. give 0.27 million weights for n = 3."""
    for blocks in (1, 3):
        made = ResNetCifar(blocks=blocks, width=16).build((3, 32, 32), 10)
        convolutions = [m for m in made.modules() if isinstance(m, torch.nn.Conv2d)]
        inner = [m for m in convolutions if m.kernel_size == (3, 3)]
        assert len(inner) + 1 == 6 * blocks + 2
        assert [m.out_channels for m in inner[1 :: 2 * blocks]] == [16, 32, 64]
    assert 0.27e6 < count(ResNetCifar(blocks=3), (3, 32, 32), 10) < 0.28e6
    sizes = shapes(network(ResNetCifar(width=4), (1, 8, 8)).init(0))
    assert list(sizes.values())[-2:] == [(10, 16), (10,)]


def test_halving_is_average_pooling() -> None:
    x = torch.randn(3, 2, 6, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x.requires_grad_()
    found, expected = Halving()(x), torch.nn.functional.avg_pool2d(x, 2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-15)
    grads = [torch.autograd.grad(one.square().sum(), x)[0] for one in (found, expected)]
    torch.testing.assert_close(*grads, rtol=0, atol=1e-15)
    stacked = torch.func.vmap(Halving())(x.detach()[None])
    assert stacked[0].equal(found)
