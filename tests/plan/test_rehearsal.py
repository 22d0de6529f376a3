"""What is tried before anything is trained, and what the plan says of it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planning
import pytest
import torch
import worlds
import yaml
from torch import Tensor, nn

from fl.api import Network
from fl.api.method import declaration_of
from fl.base import plugins, registry
from fl.base.errors import ConfigError
from fl.cli import main
from fl.plan import method_entries, plan, rehearsal, trial_steps
from fl.pytorch import torch_internals

MODEL = '''"""A model of one's own."""

from dataclasses import dataclass

import torch
from torch import nn


class Layers(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        x = x * self.scale
        {line}
        return self.layer(x)


@dataclass(frozen=True)
class Mine:
    """No keys."""

    def build(self, shape, classes):
        return Layers(shape, classes)
'''


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study of a model of the user's own, whose file is still to be written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plugins, "_roots", {"fl": plugins.FL})
    monkeypatch.setattr(sys, "path", [*sys.path])
    execution = {**planning.EXECUTION, "backend": "auto"}
    settings = {"plugins": ["rehearsed"], "execution": execution}
    planning.write_config(tmp_path, {"models": ["mine"]}, settings)
    (tmp_path / "rehearsed" / "models").mkdir(parents=True)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "rehearsed"]:
        del sys.modules[name]


def reason(lab: Path, line: str) -> str:
    """Why clients of a model with that line cannot be stacked, as the plan says it."""
    (lab / "rehearsed" / "models" / "mine.py").write_text(MODEL.format(line=line))
    [bundle] = plan.make(Path("config")).bundles.values()
    return str(bundle.unstackable)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x = x + 1", ""),
        ("x = x if x.sum() > 0 else -x", "data-dependent control flow"),
        ("x = x + float(x.detach().sum())", "this is impossible in a stack of clients"),
    ],
)
def test_a_bundle_says_whether_its_clients_can_be_stacked(lab: Path, line: str, said: str) -> None:
    found = reason(lab, line)
    assert said in found
    assert bool(said) == bool(found)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("x = x.detach()", "no gradient reaches scale"),
        ("x = x[:, :1]", "mine does not take the inputs of synthetic"),
        ("x = x + torch.rand(1)", "draws random numbers that do not depend on the batch's keys"),
        ("raise KeyError('gone')", "KeyError: 'gone'"),
        ("x = x[:, :1] if len(x) > 2 else x", "models/mine.py, line"),
        ("import sys; sys.exit(0)", "SystemExit: 0"),
        ("x = x.double()", "Try: let forward keep to the type of its inputs, x.dtype"),
    ],
)
def test_what_cannot_be_trained_is_refused(lab: Path, line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        reason(lab, line)
    assert said in str(caught.value)
    assert "config/studies/tiny.yaml: " in str(caught.value)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("softmax(1)", "are probabilities"),
        ("sigmoid()", "between 0 and 1"),
        ("sub(self.layer(x).mean(0))", "depend on the other samples of its batch"),
        ("tanh()", ""),
    ],
)
def test_outputs_that_mislead_are_noted(lab: Path, function: str, said: str) -> None:
    reason(lab, f"return self.layer(x).{function}")
    notes = plan.make(Path("config")).studies["tiny"].notes
    assert len(notes) == bool(said)
    assert all(said in note for note in notes)


def test_a_method_without_a_weight_to_train_is_told_the_models_title(tmp_path: Path) -> None:
    study = {"models": [{"logistic": {"title": "One layer"}}], "methods": {"fedrep": {}}}
    planning.write_config(tmp_path, study)
    with pytest.raises(ConfigError, match=r"methods.fedrep: with One layer: .* head, 1\."):
        plan.make(tmp_path / "config")


@pytest.mark.parametrize("surplus", [0, 3])
def test_outputs_that_are_of_no_class_are_noted(lab: Path, surplus: int) -> None:
    line = f"return torch.nn.functional.pad(self.layer(x), (0, {surplus}))"
    assert not reason(lab, line)
    notes = plan.make(Path("config")).studies["tiny"].notes
    assert ["3 outputs" in note for note in notes] == [True] * bool(surplus)


@pytest.mark.parametrize(
    ("line", "differing"),
    [
        ("layers.layer.bias.data.fill_(len(CALLS))", "layer.bias"),
        ("layers.register_buffer('count', torch.full((2,), len(CALLS)))", "count"),
        ("layers.scale.data.fill_(__import__('numpy').random.default_rng().random())", "scale"),
        ("layers.scale.data.fill_(__import__('numpy').random.rand())", ""),
        ("layers.calls = len(CALLS)", ""),
        ("layers.register_forward_hook(lambda m, x, y: y * len(CALLS))", "their outputs"),
        (
            "layers.register_forward_hook("
            "lambda m, x, y: y if m.training else CALLS.append(1) or y * len(CALLS))",
            "their outputs",
        ),
    ],
)
def test_two_builds_of_a_model_are_the_same_model(lab: Path, line: str, differing: str) -> None:
    text = MODEL.replace("class Layers", "CALLS = []\n\n\nclass Layers")
    text = text.replace(
        "return Layers(shape, classes)\n",
        f"CALLS.append(1)\n        layers = Layers(shape, classes)\n        {line}\n"
        "        return layers\n",
    ).replace("{line}", "pass")
    (lab / "rehearsed" / "models" / "mine.py").write_text(text)
    if differing:
        with pytest.raises(ConfigError, match=f"models.0.mine: two builds .* in {differing}"):
            plan.make(Path("config"))
    else:
        plan.make(Path("config"))


METHOD = '''"""A method of one's own."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Lost:
    """No keys."""

    def build(self, context):
        {line}
'''


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pass", "returns None. Try: write `return` before what it builds"),
        ("return self", "returns an object of type Lost. Allowed: a Method, as fl.api.recipe make"),
    ],
)
def test_a_method_that_builds_no_method_is_told_so(lab: Path, line: str, said: str) -> None:
    (lab / "rehearsed" / "methods").mkdir()
    (lab / "rehearsed" / "methods" / "lost.py").write_text(METHOD.format(line=line))
    planning.write_study(lab, {"methods": {"lost": None}})
    with pytest.raises(ConfigError) as caught:
        plan.make(Path("config"))
    assert f"tiny.yaml: methods.lost: with mlp(hidden=[5]): Lost.build {said}" in str(caught.value)


PASSES = '''"""A method of one's own."""

from dataclasses import dataclass, replace

from fl.api import recipe


@dataclass(frozen=True)
class Lost:
    """No keys."""

    def build(self, context):
        method = recipe(context)
        local = method.passes[0]

        def begin(server, client):
            work = local.begin(server, client)
            {begin}

        def end(server, client, work):
            client, upload = local.end(server, client, work)
            {end}

        return replace(method, passes=(replace(local, begin=begin, end=end),))
'''


@pytest.mark.parametrize(
    ("begin", "end", "said"),
    [
        ("pass", "return client, upload", "`begin` of the method's pass returns None"),
        ("return work", "pass", "`end` of the method's pass returns None"),
        ("return work", "return client", "`end` of the method's pass returns an object of type"),
        (
            "return work",
            "return {**client, 'emma': upload['params']}, upload",
            "the state of a client that a method returned from `end` or `aggregate` has emma/",
        ),
    ],
)
def test_what_passes_return_is_tried_before_training(
    lab: Path, begin: str, end: str, said: str
) -> None:
    (lab / "rehearsed" / "methods").mkdir()
    code = PASSES.format(begin=begin, end=end)
    (lab / "rehearsed" / "methods" / "lost.py").write_text(code)
    planning.write_study(lab, {"methods": {"lost": None}})
    with pytest.raises(ConfigError) as caught:
        plan.make(Path("config"))
    assert said in str(caught.value)


FIRST = '''"""A method of one's own."""

from dataclasses import dataclass, replace

from fl.api import recipe


@dataclass(frozen=True)
class Lost:
    """No keys."""

    def build(self, context):
        method = recipe(context)

        def init(variables):
            server, client = method.init(variables)
            params = dict(server["params"])
            {line}

        return replace(method, init=init)
'''


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("pass", "`init` of the method returns None"),
        ("return server", "`init` of the method returns an object of type"),
        ("return {**server, 'rate': 0.5}, client", "an object of type float as server/rate"),
        (
            "params['1.bias'] = params['1.bias'][:3]; return {**server, 'params': params}, client",
            "`init` of the method returns server/params/1.bias as float32 [3]; it was float32 [5]",
        ),
        (
            "params['1.bias'] = params['1.bias'].double(); "
            "return {**server, 'params': params}, client",
            "server/params/1.bias as float64 [5]; it was float32 [5]",
        ),
        (
            "del params['1.bias']; return {**server, 'params': params}, client",
            "server/params/1.bias as nothing; it was float32 [5]",
        ),
    ],
)
def test_what_init_returns_is_tried_before_training(lab: Path, line: str, said: str) -> None:
    (lab / "rehearsed" / "methods").mkdir()
    (lab / "rehearsed" / "methods" / "lost.py").write_text(FIRST.format(line=line))
    planning.write_study(lab, {"methods": {"lost": None}})
    with pytest.raises(ConfigError) as caught:
        plan.make(Path("config"))
    assert "tiny.yaml: methods.lost: " in str(caught.value)
    assert said in str(caught.value)


STAGES = '''"""A method of one's own."""

from dataclasses import replace

from fl.api import declare, personal, recipe, shared


@declare({stages})
class Lost:
    """No keys."""

    def build(self, context):
        return replace(recipe(context), views={{{views}}})
'''

BOTH = '"global": shared, "personal": personal'


@pytest.mark.parametrize(
    ("stages", "views", "said"),
    [
        (
            *('"global", "personal"', '"global": shared'),
            "Lost declares the stage 'personal', but its build returns a method that evaluates "
            '"global" only. Try: @declare("global"), or a view of the client\'s own model: '
            f"replace(recipe(context), views={{{BOTH}}})",
        ),
        (
            *('"global"', '"personal": personal'),
            "Lost declares the stage 'global', but its build returns a method that evaluates "
            '"personal" only. Try: @declare("personal"), or a view of the server\'s model: '
            f"replace(recipe(context), views={{{BOTH}}})",
        ),
        (
            *('"global"', BOTH),
            "Lost builds a view of the stage 'personal', which it does not declare. "
            'Try: @declare("global", "personal")',
        ),
        ('"global", "personal"', BOTH, ""),
        ('"global", "personal"', '"personal": personal', ""),
    ],
)
def test_stages_that_are_declared_are_built(lab: Path, stages: str, views: str, said: str) -> None:
    """A personal stage without its view was scored by the shared model, without a word."""
    (lab / "rehearsed" / "methods").mkdir()
    text = STAGES.format(stages=stages, views=views)
    (lab / "rehearsed" / "methods" / "lost.py").write_text(text)
    planning.write_study(lab, {"methods": {"lost": None}})
    problem = ""
    try:
        plan.make(Path("config"))
    except ConfigError as error:
        problem = str(error).partition("methods.lost: with mlp(hidden=[5]): ")[2]
    assert problem == said


@pytest.mark.parametrize("line", ["sys.exit(0)", "def leave(): sys.exit(0)"])
def test_a_plugin_that_ends_the_program_is_an_error(
    lab: Path, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    """When it is imported, and when a method of it is built."""
    (lab / "rehearsed" / "methods").mkdir()
    text = (plugins.FL / "methods" / "fedavg.py").read_text()
    built = "        leave()\n        return " if "def" in line else "        return "
    text = text.replace("        return ", built).replace(
        "\n\n\n", f"\nimport sys\n{line}\n\n\n", 1
    )
    (lab / "rehearsed" / "methods" / "gone.py").write_text(text)
    planning.write_study(lab, {"methods": {"gone": None}})
    assert main.main(["plan"]) == 1
    assert "SystemExit: 0" in capsys.readouterr().err


def test_a_sweep_is_tried_before_training(tmp_path: Path) -> None:
    """FedL2P measures what goes into layers, and attention calls none of its projections."""
    study = {
        "datasets": ["digits"],
        "partitions": [{"homogeneous": {"clients": 4}}],
        "models": [{"vit": {"patch": 4, "depth": 1, "dim": 8, "heads": 2}}],
        "methods": {
            "fedavg": None,
            "nets": {"method": "fedl2p", "start": "fedavg", "learns": "lr"},
        },
    }
    config = planning.write_config(tmp_path, study)
    with pytest.raises(ConfigError, match=r"methods.nets: .* call layers.0.self_attn.out_proj[.,]"):
        plan.make(config)


def test_shapes_of_batch_normalisation_are_those_of_numbers() -> None:
    torch_internals.remember_meta_shapes()
    shapes = []
    for device in ("cpu", "meta", "meta"):
        layer = nn.BatchNorm2d(3, device=device)
        x = torch.ones(2, 3, 4, 4, device=device, requires_grad=True)
        y = layer(x)
        gradients = torch.autograd.grad(y.sum() + layer.eval()(x).sum(), [x, *layer.parameters()])
        shapes.append([y.shape, *(gradient.shape for gradient in gradients)])
    assert shapes[0] == shapes[1] == shapes[2]


def test_copies_of_a_model_share_weights_and_no_layer() -> None:
    built: list[nn.Module] = []

    def build() -> nn.Module:
        built.append(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
        return built[-1]

    copy = rehearsal.copies(build)
    first, second = copy(), copy()
    assert len(built) == 1
    assert {*first.modules()}.isdisjoint([*second.modules(), *built[0].modules()])
    for weight, copied in zip(first.parameters(), second.parameters(), strict=True):
        assert weight.data_ptr() == copied.data_ptr() and type(weight) is nn.Parameter
    for buffer, copied in zip(first.buffers(), second.buffers(), strict=True):
        assert buffer.data_ptr() == copied.data_ptr() and type(buffer) is Tensor
        assert buffer is not copied
    first.double()
    assert second[0].weight.dtype == torch.float32
    with torch.device("meta"):
        assert next(copy().parameters()).is_meta
    locked = rehearsal.copies(lambda: build().register_module("held", Held()) or built[-1])
    assert locked() is built[-1] and locked() is built[-1]


class Held(nn.Module):
    """A layer that cannot be copied."""

    def __deepcopy__(self, memo: object) -> nn.Module:
        raise TypeError("it cannot be copied")


NUMBERS: dict[str, Callable[[Tensor], list[Any]]] = {
    "tensor": lambda x: [x, torch.ones_like(x)],
    "number": lambda x: [x, 2],
    "fraction": lambda x: [x, 0.5],
    "number first": lambda x: [2, x],
    "other layout": lambda x: [x, torch.ones(x.shape, device=x.device)],
    "one row": lambda x: [x, torch.ones(x.shape[1:], device=x.device)],
    "whole numbers": lambda x: [x.long(), torch.ones_like(x).long()],
    "whole and fraction": lambda x: [x.long(), 0.5],
    "two types": lambda x: [x, torch.ones_like(x).double()],
}


@pytest.mark.parametrize("arguments", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize(
    "operation", [torch.add, torch.sub, torch.mul, torch.div, torch.ge, torch.eq, torch.stack]
)
def test_shapes_of_frequent_operations_are_those_of_numbers(
    operation: Callable[..., Tensor], arguments: Callable[[Tensor], list[Any]]
) -> None:
    torch_internals.remember_meta_shapes()
    shapes = []
    for device in ("cpu", "meta", "meta"):  # The last results are remembered.
        whole = torch.ones(2, 3, 4, device=device)
        for x in (whole, whole.transpose(0, 1), whole[:, ::2], whole.expand(5, 2, 3, 4)):
            given = [torch.as_tensor(part, device=device) for part in arguments(x)]
            try:
                y = operation(given) if operation is torch.stack else operation(*arguments(x))
                shapes.append([device, y.shape, y.stride(), y.dtype])
            except (RuntimeError, TypeError) as error:
                shapes.append([device, type(error).__name__])
    count = len(shapes) // 3
    numbers, first, second = (
        [each[1:] for each in shapes[k * count : (k + 1) * count]] for k in range(3)
    )
    assert numbers == first == second


@pytest.mark.parametrize(
    ("analysis", "said"),
    [
        ({"inversion": {"client": 99}}, "there is no client 99. Allowed: 0 to 3"),
        ({"cooperation": None}, "analyses.0.cooperation: reads cooperation of every round"),
    ],
)
def test_an_analysis_of_what_will_not_be_there_is_refused(
    tmp_path: Path, analysis: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    study = {
        "datasets": ["digits"],
        "partitions": [{"homogeneous": {"clients": 4}}],
        "models": [{"two-layer": {"hidden": 4}}],
        "analyses": [analysis],
    }
    caplog.set_level("INFO")
    with pytest.raises(ConfigError) as caught:
        plan.make(planning.write_config(tmp_path, study))
    assert said in str(caught.value)
    assert "planning tiny" in caplog.text


ENTRIES: dict[str, dict[str, Any]] = {
    "tapped": {"method": "fedavg", "terms": {"cosine": {"layers": ["2"]}}},
    "altered": {"method": "fedavg", "alterations": {"mixstyle": {"layers": ["3"]}}},
    "surrounded": {"method": "l2p", "start": "tapped"},
    "channels": {"method": "fedfa", "layers": ["3"]},
    "moments": {"method": "fedavg", "terms": {"mk-mmd": {"layers": ["2"], "every": 2}}},
    "two-steps": {"method": "perfedavg"},
    "two-phases": {"method": "fedproto"},
    "traced": {"method": "afl"},
}


def test_a_rehearsal_does_not_depend_on_the_order_of_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[str, rehearsal.Rehearsed]] = []
    rehearse = rehearsal.rehearse_entry

    def noted(entry: method_entries.MethodEntry, *arguments: Any) -> dict[str, Any]:
        result = rehearse(entry, *arguments)
        found[-1] |= {f"{entry.label} {key}": rehearsed for key, rehearsed in result.items()}
        return result

    monkeypatch.setattr(rehearsal, "rehearse_entry", noted)
    study: dict[str, Any] = {
        **planning.STUDY,
        "datasets": ["digits"],
        "partitions": [{"homogeneous": {"clients": 4, "val": 0.2}}],
        "models": ["cnn"],
    }
    config, plans = planning.write_config(tmp_path), []
    for labels in (list(ENTRIES), [*reversed(ENTRIES)]):
        found.append({})
        study["methods"] = {label: ENTRIES[label] for label in labels}
        # Keys that are not sorted, because entries are tried in the order of the file.
        text = yaml.safe_dump(study, sort_keys=False)
        (config / "studies" / "tiny.yaml").write_text(text)
        plans.append(plan.make(config))
    forwards, backwards = found
    assert [*forwards] == [*reversed(backwards)]
    assert forwards == backwards
    assert len(forwards) == len(ENTRIES)
    assert plans[0].bundles == plans[1].bundles
    first, second = (made.studies["tiny"] for made in plans)
    assert sorted(first.runs, key=str) == sorted(second.runs, key=str)
    assert (first.entries, first.models) == (second.entries, second.models)


def test_no_step_is_tried_for_another_rate_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    reason = rehearsal.Attempt.reason

    def noted(attempt: rehearsal.Attempt) -> str:
        training = attempt.context.training
        tried.append(f"{training.schedule} {training.momentum}")
        return reason(attempt)

    monkeypatch.setattr(rehearsal.Attempt, "reason", noted)
    entries = {
        "plain": {"method": "fedavg", "momentum": 0.9},
        "falling": {"method": "fedavg", "momentum": 0.9, "schedule": "drops", "lr_decay": 0.1},
        "fast": {"method": "fedavg", "momentum": 0.9, "lr": 2.0},
        "without": {"method": "fedavg", "momentum": 0.0},
    }
    plan.make(planning.write_config(tmp_path, {"methods": entries}))
    # Entries of a study are sorted in its file.
    assert tried == ["drops 0.9", "constant 0.0"]


def test_a_trial_leaves_the_network_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is tried would depend on the order of a study's entries."""
    networks: list[Network] = []
    made = rehearsal.probed_network

    def network(*arguments: Any) -> tuple[Network, Tensor]:
        result = made(*arguments)
        networks.append(result[0])
        return result

    monkeypatch.setattr(rehearsal, "probed_network", network)
    study = {
        "datasets": ["digits"],
        "partitions": [{"homogeneous": {"clients": 4, "val": 0.2}}],
        "models": ["cnn"],
        "methods": ENTRIES,
    }
    plan.make(planning.write_config(tmp_path, study))
    assert networks
    for tried in networks:
        variables = tried.init(0)
        output = tried.train(variables["params"], variables["buffers"], torch.zeros(2, 1, 8, 8))
        assert not output.taps
        assert not any(layer._forward_hooks for layer in tried._module.modules())


def keys_of(method: str) -> dict[str, Any] | None:
    """Keys without which a method cannot be planned."""
    if method == "fedfa":
        return {"layers": ["1"]}
    starts = declaration_of(worlds.entry(method).target).starts
    return {"start": "fedavg" if "any" in starts else starts[0]} if starts else None


@pytest.mark.parametrize("meta", [False, True], ids=["numbers", "shapes alone"])
def test_every_method_is_accepted_with_its_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meta: bool
) -> None:
    """Large models are tried without numbers, which takes a fraction of the time."""
    monkeypatch.chdir(tmp_path)
    components = registry.components("method")
    # Other tests have added methods of plugins.
    names = [one.name for one in components if one.target.__module__.startswith("fl.")]
    if meta:
        monkeypatch.setattr(rehearsal.Attempt, "_devices", [trial_steps.META])
        trial_steps._prepare_meta()
    study = {
        "datasets": ["digits"],
        "partitions": [{"dirichlet": {"clients": 4, "alpha": 0.5, "server": 0.1}}],
        "models": ["cnn"],
        "methods": {name: keys_of(name) for name in names},
    }
    planning.write_config(tmp_path, study)
    assert len(plan.make(Path("config")).runs) == len(names)
