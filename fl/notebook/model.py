"""Models to keep: from raw inputs to classes, targets or masks, without the study and its data.

A saved model is a folder with ``model.safetensors``, its tensors, and ``model.json``, everything
else: the model's component with its keys, how raw inputs are read, classes, and, for a method with
a prediction rule of its own, that method. Nothing is pickled, and no code is stored: a model of a
plugin needs the plugin.
"""

from __future__ import annotations

import contextlib
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fl.api.method import VARIABLE_GROUPS, BuildContext, Predictor
from fl.api.network import Network
from fl.api.task import Task
from fl.api.training import Training
from fl.api.trees import Tree
from fl.base import files, registry
from fl.base.dataclass_json import as_json, from_json
from fl.base.errors import ConfigError, DataError, FedloomError, Location
from fl.base.folders import path_of
from fl.base.plugins import use
from fl.base.specs import MethodSpec
from fl.data.readers.raw_inputs import Input
from fl.engine.assembly import TYPE_BY_PRECISION, make_network
from fl.engine.run_setup import build
from fl.engine.sample_arrays import Arrays, affine
from fl.notebook.display import short_traceback
from fl.plan.run_spec import method_components_of
from fl.pytorch.construction import adapt
from fl.runner.environment import VERSION
from fl.store.checkpoint import load_tree, save_tree

TENSORS, RECORD = "model.safetensors", "model.json"
TOKENIZER, WEIGHTS = "tokenizer.json", "weights"
"""File of a tokenizer of texts, and folder of the files from which a pretrained model is built."""
FORMAT = 1
"""Number of the form of these files; a reader refuses later ones."""
ADVICE = "the folder that `model.save` wrote"
SINGLE = "x"
"""Name of the input of a model that has one."""


@dataclass(frozen=True)
class Rule:
    """A method with a prediction rule of its own, and what it is built for.

    Attributes:
        spec: The method and what a study adds to it, as in the run's spec.
        clients: Number of clients.
        absent_clients: Number of clients that take part in no round.
        seed: Seed of the run.
        tokens: Names of several inputs that are tokens.
    """

    spec: dict[str, Any]
    clients: int
    absent_clients: int
    seed: int
    tokens: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """Everything of a kept model but its tensors.

    Attributes:
        run: Id of the run.
        title: Title of the run's bundle.
        stage: ``global`` or ``personal``.
        client: Number of the client whose model it is; None for the shared one.
        task: Name of the task.
        classes: Names of the classes.
        target: Mean and deviation of targets.
        model: The model's component, as in the run's spec.
        training: Settings of training, as in the run's spec.
        inputs: Inputs by name; a single one is `SINGLE`.
        rule: The method, if prediction is not a pass of the network.
        code: Files of plugins by component, such as ``model net``: ``lab/models/net.py``.
        versions: Versions of Fedloom, PyTorch and Python.
    """

    run: str
    title: str
    stage: str
    client: int | None
    task: str
    classes: tuple[str, ...]
    target: tuple[float, float]
    model: dict[str, Any]
    training: dict[str, Any]
    inputs: dict[str, Input]
    rule: Rule | None = None
    code: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(
        default_factory=lambda: {
            "fedloom": VERSION,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
    )
    format: int = FORMAT


class Model(nn.Module):
    """Trained model that takes raw inputs, from `Result.model` or `fl.load_model`.

    As a module it takes what `Result.inputs` returns, in which everything is normalised already;
    ``module`` is the network itself. `predict` and `predict_proba` take what training was given:
    a DataFrame or the path of a table, texts, image files, or arrays like the data set's; several
    inputs are a dictionary by name. Predictions are in the order of the inputs. If a model
    normalises by its batch, all inputs of a call are one.

    Attributes:
        card: What the model is, and how raw inputs are read.
        module: The network.
    """

    def __init__(self, card: Card, tensors: Tree) -> None:
        """Build the network and set its tensors.

        Args:
            card: Everything but the tensors.
            tensors: ``variables``, ``memory`` of the prediction rule, and ``frozen`` weights.
        """
        super().__init__()
        self.card, self._tensors = card, tensors
        training = Training(**card.training)
        self._dtype = TYPE_BY_PRECISION[training.precision]
        self._mixed = training.precision == "mixed"
        self._task: Task = registry.find("task", card.task, Location(card.run)).instantiate({})
        network = make_network(self._new_module, training)
        self.module = network.module({g: tensors["variables"][g] for g in VARIABLE_GROUPS})
        self._rule: Predictor | None = None
        if card.rule is not None:
            zeros = {n: np.zeros((1, *i.shape), i.dtype) for n, i in card.inputs.items()}
            network.probe(self._prepared(zeros, slice(None)))
            self._rule = self._build_rule(network, training, card.rule)
        self.eval()

    def _new_module(self) -> nn.Module:
        spec, inputs = self.card.model, self.card.inputs
        shapes = {name: item.shape for name, item in inputs.items()}
        shape: Any = shapes[SINGLE] if [*inputs] == [SINGLE] else shapes
        _, component = registry.component_of("model", spec)
        module: nn.Module = adapt(component.build(shape, len(self.card.classes)), spec)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, weight in self._tensors["frozen"].items():
                parameters[name].copy_(weight)
        return module

    def _build_rule(self, network: Network, training: Training, rule: Rule) -> Predictor:
        """Return the prediction rule of the method, built as for the run."""
        shapes = {name: item.shape for name, item in self.card.inputs.items()}
        is_single = [*shapes] == [SINGLE]
        context = BuildContext(
            network=network,
            training=training,
            classes=len(self.card.classes),
            clients=rule.clients,
            shape=shapes[SINGLE] if is_single else (),
            seed=rule.seed,
            absent_clients=rule.absent_clients,
            task=self._task,
            shapes={} if is_single else shapes,
            tokens=frozenset(rule.tokens),
        )
        spec = cast(MethodSpec, rule.spec)
        view = build(method_components_of(spec), context).views[self.card.stage]
        assert isinstance(view, Predictor)
        return view

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of `predict_proba`; for targets, the target's."""
        return self.card.classes

    def extra_repr(self) -> str:
        """Return what the model is of, for its text."""
        client = "" if self.card.client is None else f", client {self.card.client}"
        return f"{self.card.title}{client}: {self.card.task} of {self._allowed}"

    @property
    def _allowed(self) -> str:
        items = self.card.inputs.items()
        single = [*self.card.inputs] == [SINGLE]
        return "; ".join(item.allowed if single else f"{n}: {item.allowed}" for n, item in items)

    def forward(self, x: Any) -> Tensor:
        """Return the network's outputs for prepared inputs, as those of `Result.inputs`."""
        outputs: Tensor = self.module(x)
        return outputs

    @short_traceback
    def predict(self, x: Any) -> np.ndarray:
        """Return the class of each sample by name, its target in the target's unit, or its mask.

        Args:
            x: Raw inputs: a DataFrame or the path of a table, a list of texts, image files or the
                path of a folder of them, an array [samples, ...] as the data set's; several inputs
                are a dictionary by name.

        Returns:
            Names [samples], targets [samples], or masks of class numbers [samples, height, width].

        Raises:
            FedloomError: If inputs are not of the kind, shape or columns of training.
        """
        outputs = self._outputs(x)
        if self.card.task == "regression":
            mean, sd = self.card.target
            targets: np.ndarray = mean + sd * outputs.squeeze(-1).double().numpy()
            return targets
        numbers = outputs.softmax(1).numpy().argmax(1)
        is_mask = outputs.ndim > 2
        return np.asarray(numbers if is_mask else np.array(self.classes)[numbers])

    @short_traceback
    def predict_proba(self, x: Any) -> np.ndarray:
        """Return the probability of each class, [samples, classes], for masks of each pixel too.

        Args:
            x: See `predict`.

        Raises:
            FedloomError: See `predict`; also for a model of targets.
        """
        self._check_classes()
        return np.asarray(self._outputs(x).softmax(1).numpy())

    def _check_classes(self) -> None:
        if self.card.task == "regression":
            problem = f"the model of {self.card.title}: predicts numbers, which have no classes"
            raise FedloomError(problem, advice="predict")

    @torch.no_grad()
    def _outputs(self, raw: Any) -> Tensor:
        """Return the outputs for raw inputs, in float32 or float64 on the CPU."""
        arrays = self._arrays(raw)
        samples, size = len(next(iter(arrays.values()))), self._task.chunk
        self.module.eval()
        outputs = [
            self._predict(self._prepared(arrays, slice(begin, begin + size)))
            for begin in range(0, samples, size)
        ]
        joined = torch.cat(outputs).cpu()
        return joined if joined.dtype == torch.float64 else joined.float()

    def _predict(self, x: Any) -> Tensor:
        if self._rule is not None:
            return self._rule.predict(self._tensors["variables"], self._tensors["memory"], x)
        autocast = torch.autocast(self._device.type, torch.bfloat16)
        with autocast if self._mixed else contextlib.nullcontext():
            outputs: Tensor = self.module(x)
        return outputs.to(self._dtype)

    @property
    def _device(self) -> torch.device:
        """The device of the network; a prediction rule computes on the CPU."""
        tensors = [] if self._rule is not None else [*self.module.parameters()]
        return tensors[0].device if tensors else torch.device("cpu")

    def _arrays(self, raw: Any) -> dict[str, np.ndarray]:
        """Return raw inputs as arrays like the data set's."""
        inputs = self.card.inputs
        if [*inputs] == [SINGLE]:
            return {SINGLE: inputs[SINGLE].read(raw, SINGLE)}
        if not isinstance(raw, Mapping) or {*raw} != {*inputs}:
            names = ", ".join(map(str, raw)) if isinstance(raw, Mapping) else type(raw).__name__
            raise DataError(f"the inputs: are {names}", f"a dictionary of {', '.join(inputs)}")
        arrays = {name: item.read(raw[name], name) for name, item in inputs.items()}
        lengths = {name: len(x) for name, x in arrays.items()}
        if len({*lengths.values()}) > 1:
            shown = ", ".join(f"{count} of {name}" for name, count in lengths.items())
            raise DataError(f"the inputs: are {shown}", "equally many, a sample's at one place")
        return arrays

    def _prepared(self, arrays: Mapping[str, np.ndarray], rows: slice) -> Any:
        """Return some samples as the network takes them, computed as in training."""
        prepared = {}
        for name, array in arrays.items():
            x = array[rows]
            normalisation = self.card.inputs[name].normalisation
            samples = Arrays(
                x, np.zeros(len(x), np.int64), normalisation, self._device, self._dtype
            )
            prepared[name] = samples.inputs(torch.arange(len(x), device=samples.device))
        return prepared[SINGLE] if [*prepared] == [SINGLE] else prepared

    @short_traceback
    def save(self, folder: str | Path) -> Path:
        """Write the model to a folder, which `fl.load_model` reads in any process.

        Args:
            folder: A new folder, or that of a saved model, which is replaced.

        Returns:
            The folder.

        Raises:
            FedloomError: If the folder has other files, or cannot be written.
        """
        path, card = path_of(str(folder)), self.card
        if (
            path.exists()
            and not (path / RECORD).exists()
            and (path.is_file() or any(path.iterdir()))
        ):
            problem = f"{path}: exists, and is no saved model"
            raise FedloomError(problem, advice="the name of a new folder")
        with files.disk_errors(path):
            path.mkdir(parents=True, exist_ok=True)
            (path / RECORD).unlink(missing_ok=True)  # It is written last.
            card = replace(card, inputs=_without_paths(card.inputs, path))
            card = replace(card, model=_without_weights(card.model, path))
            save_tree(self._current_tensors(), path / TENSORS)
            files.write_sealed(path / RECORD, as_json(card), [TENSORS])
        return path

    def _current_tensors(self) -> dict[str, Any]:
        """Return the tensors, with those of the network as they are now."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        now = {name: tensor.detach() for name, tensor in named.items()}
        variables = dict(self._tensors["variables"])
        if self._rule is None:
            variables = {g: {name: now[name] for name in variables[g]} for g in VARIABLE_GROUPS}
        return {**self._tensors, "variables": variables}

    @short_traceback
    def export(self) -> torch.export.ExportedProgram:
        """Return the model as a program of PyTorch, without Fedloom, for any number of samples.

        It takes arrays like the data set's: images and other numbers as they are, tokens of texts,
        the features of a table (`features`). It returns probabilities, or targets.

        Raises:
            FedloomError: If the method has a prediction rule of its own, or the network cannot be
                exported.
        """
        title = f"the model of {self.card.title}"
        if self._rule is not None:
            problem = f"{title}: predicts by a rule of its method, and not by one network"
            raise FedloomError(problem, advice="save, which keeps the rule")
        inputs = self.card.inputs
        example = {
            name: torch.from_numpy(np.zeros((2, *item.shape), item.dtype))
            for name, item in inputs.items()
        }
        samples = {0: torch.export.Dim("samples")}
        is_single = [*inputs] == [SINGLE]
        shapes: Any = samples if is_single else dict.fromkeys(inputs, samples)
        program = _Program(self).eval()
        try:
            return torch.export.export(
                program,
                (example[SINGLE] if is_single else example,),
                dynamic_shapes={"x": shapes},
            )
        except Exception as error:
            reason = str(error).strip().split("\n")[0][:200]
            raise FedloomError(f"{title}: cannot be exported ({reason})") from error

    @short_traceback
    def features(self, x: Any) -> np.ndarray | dict[str, np.ndarray]:
        """Return raw inputs as arrays like the data set's, which `export` takes.

        Args:
            x: See `predict`.
        """
        arrays = self._arrays(x)
        return arrays[SINGLE] if [*arrays] == [SINGLE] else arrays


class _Program(nn.Module):
    """A model with normalisation before it and probabilities or targets after it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.module, self.dtype, self.is_mixed = model.module, model._dtype, model._mixed
        self.target = model.card.target if model.card.task == "regression" else None
        self.names, self.device_type = [*model.card.inputs], model._device.type
        for name, item in model.card.inputs.items():
            if item.normalisation is not None:
                wide = torch.float64 if item.dtype == "float64" else self.dtype
                pair = affine(item.normalisation, len(item.shape) - 1, model._device, wide)
                for key, tensor in zip(("factor", "offset"), pair, strict=True):
                    self.register_buffer(f"{name}_{key}", tensor)

    def forward(self, x: Any) -> Tensor:
        if isinstance(x, Tensor):
            inputs: Any = self._input(SINGLE, x)
        else:
            inputs = {name: self._input(name, x[name]) for name in self.names}
        if self.is_mixed:
            with torch.autocast(self.device_type, torch.bfloat16):
                outputs: Tensor = self.module(inputs)
        else:
            outputs = self.module(inputs)
        if self.target is not None:
            mean, sd = self.target
            return mean + sd * outputs.squeeze(-1).double()
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return outputs.to(self.dtype).to(wide).softmax(1)

    def _input(self, name: str, x: Tensor) -> Tensor:
        factor, offset = (getattr(self, f"{name}_{key}", None) for key in ("factor", "offset"))
        if factor is None or offset is None:
            return x.long()
        normalised: Tensor = x.to(factor.dtype) * factor + offset
        return normalised.to(self.dtype)


def _without_paths(inputs: Mapping[str, Input], folder: Path) -> dict[str, Input]:
    """Return inputs without paths outside of a folder; the tokenizer is copied into it."""
    written = dict(inputs)
    for name, item in inputs.items():
        if item.text is not None and item.text.tokenizer is not None:
            source = path_of(item.text.tokenizer)
            source = source / TOKENIZER if source.is_dir() else source
            if source.resolve() != (folder / TOKENIZER).resolve():
                shutil.copyfile(source, folder / TOKENIZER)
            written[name] = replace(item, text=replace(item.text, tokenizer=TOKENIZER))
    return written


def _without_weights(model: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the spec of a model whose pretrained weights are in the stored tensors.

    A model that cannot be built without their folder gets a copy of its files.
    """
    written = dict(model)
    if not isinstance(model.get("weights"), str):
        return written
    target = registry.find("model", model["name"], Location("the model")).declared["weights"]
    written["weights"] = None
    if target.default is not None:
        source = path_of(model["weights"])
        (folder / WEIGHTS).mkdir(exist_ok=True)
        for file in [*source.glob("*.safetensors"), *source.glob("config.json")]:
            if file.resolve() != (folder / WEIGHTS / file.name).resolve():
                shutil.copyfile(file, folder / WEIGHTS / file.name)
        written["weights"] = WEIGHTS
    return written


@short_traceback
def load_model(folder: str | Path, plugins: Iterable[str | Path] = ()) -> Model:
    """Return a model that `Model.save` wrote; neither its study nor its data are needed.

    Args:
        folder: The folder.
        plugins: Folders of plugins with the model's code, if it is not one of Fedloom's.

    Raises:
        FedloomError: If the folder has no model, if a file of it was changed, or if code of a
            plugin is missing.
    """
    path = path_of(str(folder))
    _use_plugins(plugins)
    if not (path / RECORD).is_file():
        problem = "has no saved model" if path.is_dir() else "does not exist"
        raise DataError(f"{path}: {problem}", ADVICE)
    record = files.read_sealed(path / RECORD)
    if record.get("format") != FORMAT:
        version = record.get("versions", {}).get("fedloom", "another version")
        problem = f"{path}: was written by Fedloom {version}, in form {record.get('format')}"
        raise DataError(problem, f"form {FORMAT}", "update Fedloom")
    if damage := files.find_damage(path / TENSORS, record["files"][TENSORS]):
        raise DataError(damage, advice="copy the folder again")
    card = from_json(Card, record)
    for component, file in card.code.items():
        kind, _, name = component.rpartition(" ")
        if name not in registry.names(kind):
            problem = f"{path}: its {kind} {name!r} is the code of {file}, which is not loaded"
            advice = f"fl.load_model({str(folder)!r}, plugins=['.../{Path(file).parts[0]}'])"
            raise DataError(problem, advice=advice)
    try:
        return Model(_with_paths(card, path), load_tree(path / TENSORS))
    except (ConfigError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: cannot be built by this code ({reason})") from error


def _use_plugins(folders: Iterable[str | Path]) -> None:
    given = [folders] if isinstance(folders, str | Path) else folders
    use([str(folder) for folder in given], Location("fl.load_model") / "plugins")


def _with_paths(card: Card, folder: Path) -> Card:
    """Return a card with files of its folder by their paths."""
    inputs = {}
    for name, item in card.inputs.items():
        inputs[name] = replace(item, shape=tuple(item.shape))
        if item.text is not None and item.text.tokenizer is not None:
            text = replace(item.text, tokenizer=str(folder / TOKENIZER))
            inputs[name] = replace(inputs[name], text=text)
    model = dict(card.model)
    if isinstance(model.get("weights"), str):
        model["weights"] = str(folder / WEIGHTS)
    return replace(card, inputs=inputs, model=model)
