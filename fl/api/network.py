"""A PyTorch module as a pure function of its weights, its buffers and its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from fl.api.trees import Inputs, Tree, map_inputs
from fl.base.errors import FedloomError
from fl.base.units import object_text
from fl.pytorch import torch_internals
from fl.pytorch.construction import check_layers, check_tensors, seeded, tensor_slots
from fl.pytorch.folding import fold_layers, unwrap_stacks
from fl.pytorch.heads import find_heads
from fl.pytorch.layer_sequence import LayerSequence
from fl.pytorch.random_numbers import (
    RandomNumbers,
    draws_random_numbers,
    no_random_numbers,
    outputs_by_keys,
    replace_functions,
    uses_replaced_functions,
)

NOTHING: Mapping[str, Tensor] = {}

Alter = Mapping[str, Callable[[Tensor], Tensor]]
"""Function by layer that changes its output; the shape stays."""

UNALTERED: Alter = {}

Around = Mapping[str, Callable[[nn.Module, Callable[[Tensor], Tensor], Tensor], Tensor]]
"""Function by layer that is called instead of it, with the layer, its function and its input."""

PLAIN: Around = {}


class Output(NamedTuple):
    """Results of a pass through the network.

    Attributes:
        outputs: Outputs, [b, classes].
        features: Input of the head, [b, d].
        buffers: The buffers after the pass.
        taps: Outputs of the layers named to `Network.tap`, after alterations.
    """

    outputs: Tensor
    features: Tensor
    buffers: dict[str, Tensor]
    taps: Mapping[str, Tensor] = NOTHING


@dataclass(frozen=True)
class _Call:
    """State of one pass through the module.

    ``taps`` and ``head_inputs`` are new objects in each call. Otherwise vmapped tensors would
    outlive a compiled call.

    Attributes:
        alter: Functions that change outputs of layers, see `Network.train`.
        around: Functions that are called instead of layers, see `Network.train`.
        taps: Outputs by layer.
        head_inputs: Inputs of the head; the last one counts.
    """

    alter: Alter
    around: Around
    taps: dict[str, Tensor] = field(default_factory=dict)
    head_inputs: list[Tensor] = field(default_factory=list)


LINEAR_NETWORK = {nn.Linear, nn.ReLU, nn.Softmax, nn.Flatten, nn.Identity}
"""Layers of which a stack of any size gives each client the same bits."""

CONSTRUCTION_SEED = 0
"""Seed under which modules are built whose own weights are not used, apart from frozen ones."""

EXAMPLES = 2
"""Number of samples with which a module is probed."""

IDLE = _Call(UNALTERED, PLAIN)
"""The call of a module that runs no pass."""


@dataclass
class _Current:
    """Current call of a module, shared by views that share the module.

    Attributes:
        call: The call.
        watched_heads: Names of the layers whose inputs are features.
        hooks: Hooks of these layers.
    """

    call: _Call = IDLE
    watched_heads: tuple[str, ...] = ()
    hooks: list[RemovableHandle] = field(default_factory=list)


class Network:
    """Module whose weights and buffers are arguments and results of its passes.

    *Variables* are ``{"params": {name: tensor}, "buffers": {name: tensor}}``, named as in the
    module.

    Attributes:
        names: All names, for ``params`` and for ``buffers``. Weights that require no gradient are
            *frozen*: they are part of the network, not of its variables, and equal for all seeds.
        batch_norm: Names of the weights and running statistics of batch normalisation.
        uses_tokens: Whether inputs are whole numbers for an embedding.
        uses_batch_statistics: Whether evaluation normalises by the batch, without running
            statistics, so that the outputs of a sample depend on the others in its batch.
        folds: Whether a stack of the network computes with channels last on a CPU. Compiled
            programs do not.
        is_sequence: Whether the network is layers one after another.
        blocks: Layers in an attribute ``blocks`` of the module; mostly none.
    """

    def __init__(
        self,
        build_module: Callable[[], nn.Module],
        dtype: torch.dtype = torch.float32,
        *,
        mixed: bool = False,
        channels_last: bool = False,
    ) -> None:
        """Build the module.

        Args:
            build_module: Function that builds the module. `init` uses its random initialisation.
            dtype: Type of weights, inputs and outputs.
            mixed: Whether layers compute in bfloat16, see `fl.api.training.Training`.
            channels_last: Memory format of images inside, see `fl.api.training.Training`.
        """
        self._build_module, self._dtype = build_module, dtype
        self._mixed, self._channels_last = mixed, channels_last
        self._origin = self
        module = self._build(CONSTRUCTION_SEED)
        check_layers(module)
        check_tensors(module)
        self._install(module)
        self.is_sequence = self._sequence is not None
        parameters = dict(self._module.named_parameters())
        self.names = {
            "params": [name for name, weight in parameters.items() if weight.requires_grad],
            "buffers": [name for name, _ in self._module.named_buffers()],
        }
        self._frozen = {
            name: weight.detach().to(dtype if weight.is_floating_point() else weight.dtype)
            for name, weight in parameters.items()
            if not weight.requires_grad
        }
        self._frozen_by_device: dict[torch.device, dict[str, Tensor]] = {}
        self._set_head_layers(self._declared_head() or self.layers(nn.Linear)[-1:])
        self.batch_norm = self._of(self.layers(torch_internals.BatchNorm))
        self._probed = False
        layers = list(self._module.modules())
        self._replace, self._random = (
            any(map(uses_replaced_functions, layers)),
            any(map(draws_random_numbers, layers)),
        )
        self._watched: set[str] = set()
        self._tapped: set[str] = set()
        self._surrounded: set[str] = set()
        self.uses_tokens = bool(self.layers(nn.Embedding))
        self.uses_batch_statistics = any(
            torch_internals.always_uses_batch_statistics(layer) for layer in layers
        )
        self.blocks: tuple[str, ...] = tuple(getattr(self._module, "blocks", ()))

    def _install(self, module: nn.Module) -> None:
        """Use this module, which no other network uses, for all passes."""
        self._module, self._shares_module = module, False
        self.folds = fold_layers(module)
        self._sequence = LayerSequence.from_module(module, self.folds)
        self._slots = tensor_slots(module)
        self._module_tensors = [
            (store, key, store[key]) for slots in self._slots.values() for store, key in slots
        ]
        self._current = _Current()

    def _build(self, seed: int) -> nn.Module:
        """Build a module of the model, equal for equal seeds in every process."""
        with seeded(seed):
            return self._build_module()

    def module(self, variables: Tree) -> nn.Module:
        """Return a PyTorch module of its own with these variables and the frozen weights."""
        module = self._build(CONSTRUCTION_SEED).to(self._dtype)
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for group, names in self.names.items():
                for name in names:
                    tensors[name].copy_(variables[group][name])
        return module

    @property
    def frozen(self) -> dict[str, Tensor]:
        """The frozen weights by name."""
        return dict(self._frozen)

    @property
    def head(self) -> frozenset[str]:
        """Names of the weights of the head, the layer that makes the outputs.

        All other weights are the *body*. A model names its head in an attribute ``head_layer``.
        Otherwise `probe` finds it; until then it is the last linear layer.
        """
        return self._origin._head

    @head.setter
    def head(self, names: frozenset[str]) -> None:
        self._origin._head = names

    @property
    def head_layers(self) -> tuple[str, ...]:
        """Names of the head's layers; mostly one. Their last input is `Output.features`."""
        return self._origin._head_layers

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of the head's layers, or of its weights if they belong to no layer."""
        return self.head_layers or tuple(sorted(self.head))

    @property
    def tied_head(self) -> list[str]:
        """Names of trained weights of the head's layers that an earlier layer has too.

        Such a weight has the name in the earlier layer, and is part of the body.
        """
        layers = [self._module.get_submodule(name) for name in self.head_layers]
        weights = {weight for layer in layers for weight in layer.parameters()}
        trained = {*self.names["params"]} - self.head
        named = self._module.named_parameters()
        return [name for name, weight in named if weight in weights and name in trained]

    def _declared_head(self) -> list[str]:
        """Return the layer that the model names as its head, if it names one."""
        name = getattr(self._module, "head_layer", None)
        if not isinstance(name, str):
            return []
        self._find_layers([name], "head_layer")
        return [name]

    def _set_head_layers(self, names: list[str]) -> None:
        """Make these layers the head; names of weights are a head without a layer."""
        weights = frozenset(names) & {*self.names["params"], *self._frozen}
        self._head_layers = tuple(name for name in names if name not in weights)
        self._head = weights.intersection(self.names["params"]) | self._of([*self._head_layers])
        self._watch_heads()

    def _watch_heads(self) -> None:
        """Make passes note the inputs of the head."""
        current, names = self._current, self.head_layers
        for hook in current.hooks:
            hook.remove()
        layers = [self._module.get_submodule(name) for name in names]
        current.hooks = [layer.register_forward_pre_hook(self._note) for layer in layers]
        current.watched_heads = names
        if self._sequence is not None:
            self._sequence.head = layers[-1] if layers else None

    @property
    def origin(self) -> Network:
        """Return the network of which this is a view; the network itself, if it is no view."""
        return self._origin

    @property
    def random(self) -> bool:
        """Whether a pass in training mode draws random numbers, see `probe`."""
        return self._origin._random

    def view(self) -> Network:
        """Return a network of the same model, whose taps and altered layers are its own.

        The view begins with this network's taps. What is then tapped, altered or surrounded in one
        of the two leaves the other as it is: it gets a module of its own at that time.
        """
        self._shares_module = True
        view = copy(self)
        view._watched, view._tapped = set(self._watched), set(self._tapped)
        view._surrounded = set(self._surrounded)
        return view

    def _separate(self) -> None:
        """Stop sharing the module with a view: build one of its own, with the taps so far."""
        if not self._shares_module:
            return
        with torch.device("cpu"):
            self._install(self._build(CONSTRUCTION_SEED))
        self._watch_heads()
        watched, surrounded = self._watched, self._surrounded
        self._watched, self._surrounded = set(), set()
        self._watch(watched)
        self.surround(surrounded)

    @property
    def is_linear(self) -> bool:
        """Whether it is linear layers one after another, with ReLU or softmax between them."""
        layers = self._module.children()
        return isinstance(self._module, nn.Sequential) and all(
            type(layer) in LINEAR_NETWORK for layer in layers
        )

    def layers(self, *classes: type[nn.Module]) -> list[str]:
        """Return the names of the layers of these classes, in the module's order."""
        return [name for name, layer in self._module.named_modules() if isinstance(layer, classes)]

    def _of(self, layers: list[str]) -> frozenset[str]:
        prefixes = [f"{layer}." if layer else "" for layer in layers]
        names = [name for group in self.names.values() for name in group]
        return frozenset(name for name in names if name.startswith(tuple(prefixes)) and prefixes)

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._current.call.head_inputs.append(inputs[0])

    def tap(self, layers: Iterable[str]) -> None:
        """Make every later pass return the outputs of these layers, `Output.taps`.

        Raises:
            FedloomError: If the model has no such layer.
        """
        self._watch(layers)
        self._tapped.update(layers)

    def alter(self, layers: Iterable[str]) -> None:
        """Allow `train` to change the outputs of these layers.

        Raises:
            FedloomError: If the model has no such layer.
        """
        self._watch(layers)

    def surround(self, layers: Iterable[str]) -> None:
        """Allow `train` and `eval` to call other functions instead of these layers."""
        added = [name for name in layers if name not in self._surrounded]
        if added:
            self._separate()
        for name in added:
            layer = self._module.get_submodule(name)
            layer.forward = partial(self._called, name, layer, layer.forward)
            self._surrounded.add(name)

    def _called(
        self, name: str, layer: nn.Module, inner: Callable[[Tensor], Tensor], x: Tensor
    ) -> Tensor:
        around = self._current.call.around
        return around[name](layer, inner, x) if name in around else inner(x)

    def _watch(self, layers: Iterable[str]) -> None:
        added = [name for name in layers if name not in self._watched]
        self._find_layers(added, "layers")
        if added:
            self._separate()
        for name in added:
            self._module.get_submodule(name).register_forward_hook(partial(self._passed, name))
            self._watched.add(name)

    def _find_layers(self, names: Iterable[str], key: str) -> None:
        """Refuse names of layers that the model does not have."""
        layer_by_name = {name: layer for name, layer in self._module.named_modules() if name}
        for name in names:
            if name not in layer_by_name:
                allowed = [
                    f"{existing!r} ({type(layer).__name__})"
                    for existing, layer in layer_by_name.items()
                ]
                raise FedloomError(f"{key}: the model has no layer {name!r}", ", ".join(allowed))

    def _passed(self, name: str, layer: nn.Module, inputs: object, output: object) -> Tensor:
        """Return the output of a watched layer, after alterations; taps record it."""
        if not isinstance(output, Tensor):
            raise FedloomError(
                f"layers: the output of {name} is a {type(output).__name__}",
                advice="choose a layer whose output is one tensor",
            )
        if name in self._current.call.alter:
            output = self._current.call.alter[name](self._as_dtype(output)).to(output.dtype)
        if name in self._tapped:
            self._current.call.taps[name] = output
        return output

    def init(self, seed: int) -> Tree:
        """Return new variables on the CPU, equal for equal seeds on every device."""
        module = self._build(seed).to(self._dtype)
        parameters = dict(module.named_parameters())
        return {
            "params": {name: parameters[name].detach() for name in self.names["params"]},
            "buffers": {name: b.detach() for name, b in module.named_buffers()},
        }

    def train(
        self,
        params: Tree,
        buffers: Tree,
        x: Inputs,
        nested: bool = False,
        key: Tensor | None = None,
        alter: Alter = UNALTERED,
        around: Around = PLAIN,
    ) -> Output:
        """Run a pass in training mode, in which running statistics change.

        Args:
            params: Weights by name.
            buffers: Buffers by name.
            x: Inputs, [b, ...].
            nested: Whether a gradient is computed through a gradient, see
                `fl.pytorch.random_numbers`.
            key: Keys of the batch, [b], if it has some.
            alter: Functions that change outputs of layers that were named to `alter`; they get and
                return tensors of the network's own type.
            around: Functions that are called instead of layers that were named to `surround`.
        """
        # Compiling is asked first, so that no program depends on earlier probes.
        if not torch.compiler.is_compiling() and not self._origin._probed and _outside():
            self.probe(x)
        moving = _copies(buffers, x, params)
        self._mode(True)
        if not self._origin._replace and not nested:
            return self._run({**params, **moving}, moving, x, _Call(alter, around))
        with replace_functions(RandomNumbers(key, nested)):
            return self._run({**params, **moving}, moving, x, _Call(alter, around))

    def eval(
        self,
        params: Tree,
        buffers: Tree,
        x: Inputs,
        nested: bool = False,
        around: Around = PLAIN,
    ) -> Output:
        """Run a pass in evaluation mode, in which buffers stay and no output is altered.

        Args:
            params: Weights by name.
            buffers: Buffers by name.
            x: Inputs, [b, ...].
            nested: See `train`.
            around: See `train`.
        """
        self._mode(False)
        with replace_functions(RandomNumbers(None, nested)) if nested else nullcontext():
            return self._run({**params, **buffers}, dict(buffers), x, _Call(UNALTERED, around))

    def probe(self, x: Inputs) -> Tensor:
        """Detect whether a pass over inputs of the shape of x draws random numbers, for `random`.

        Args:
            x: Inputs, [b, ...].

        Returns:
            The outputs for examples of such inputs in training mode, [`EXAMPLES`, ...].

        Raises:
            FedloomError: If it draws numbers that do not depend on the batch's keys. A run would
                then depend on the runs before it. Also if there is not a row of outputs for each
                sample, or if forward changes a weight, or a buffer in a way that training would
                lose or that evaluations would add to it.
        """
        if self._origin is not self:
            return self._origin.probe(x)
        self._probed = True
        variables, x = self.init(0), map_inputs(_example, x)
        initial = {group: _clones(tensors) for group, tensors in variables.items()}
        draws = RandomNumbers(torch.arange(EXAMPLES))
        outputs = outputs_by_keys(self._module, partial(self._train_outputs, variables, x), draws)
        _check_unchanged("weight", initial["params"], variables["params"], "training")
        evaluate = partial(self._eval_outputs, variables, x)
        with no_random_numbers(self._module, partial(evaluate, variables["params"])):
            if self._declared_head():
                evaluate(variables["params"])
            elif names := find_heads(
                self._module, {**self._frozen, **variables["params"]}, evaluate
            ):
                self._set_head_layers(names)
        _check_unchanged("weight", initial["params"], variables["params"], "evaluation")
        _check_unchanged("buffer", initial["buffers"], variables["buffers"], "evaluation")
        if outputs.ndim < 2 or len(outputs) != EXAMPLES:
            raise FedloomError(
                f"the model's outputs for {EXAMPLES} samples are {list(outputs.shape)}",
                f"[{EXAMPLES}, ...], a row for each sample",
                f"keep the last axis, [{EXAMPLES}, 1] for one output",
            )
        self._random = self._random or draws.has_drawn
        self._replace = self._replace or draws.has_drawn or draws.needs_replaced_functions
        return outputs

    def _eval_outputs(self, variables: Tree, x: Inputs, params: Tree) -> Tensor:
        """Return the outputs of a pass in evaluation mode."""
        self._mode(False)
        buffers = dict(variables["buffers"])
        return self._run({**params, **buffers}, buffers, x, _Call(UNALTERED, PLAIN)).outputs

    @torch.no_grad()
    def _train_outputs(self, variables: Tree, x: Inputs, draws: RandomNumbers) -> Tensor:
        """Return the outputs of a pass in training mode without other effects."""
        self._mode(True)
        buffers = _clones(variables["buffers"])
        check = partial(self._check_assigned, buffers)
        hook = self._module.register_forward_hook(check)
        try:
            with replace_functions(draws):
                variables = {**variables["params"], **buffers}
                return self._run(variables, buffers, x, _Call(UNALTERED, PLAIN)).outputs
        finally:
            hook.remove()

    def _check_assigned(self, buffers: Tree, *call: object) -> None:
        """Refuse a new value that a pass has assigned to a buffer, in place of changing it.

        Tensors of another shape pass: they are tables that a layer computes when it needs them.
        """
        for name, buffer in buffers.items():
            for store, key in self._slots[name]:
                tensor = store[key]
                is_same = tensor is buffer or tensor is None or tensor.shape != buffer.shape
                if not is_same and not _are_equal(tensor, buffer):
                    raise FedloomError(
                        f"forward of the model assigns a new tensor to its buffer {name}, which "
                        "is lost after the pass",
                        advice=f"change the buffer in place: `self.{key}.copy_(...)`",
                    )

    def _mode(self, training: bool) -> None:
        # A compiled program must not depend on the mode that was set before.
        if torch.compiler.is_compiling() or self._module.training != training:
            self._module.train(training)

    def _run(self, variables: Tree, buffers: dict[str, Tensor], x: Inputs, call: _Call) -> Output:
        if self._channels_last:
            x = map_inputs(_images_last, x)
        self._current.call = call
        first = x if isinstance(x, Tensor) else next(iter(x.values()))
        if self._frozen:
            variables = {**self._frozen_on(first.device), **variables}
        if not torch.compiler.is_compiling() and self._current.watched_heads != self.head_layers:
            self._watch_heads()
        with self._computing(first.device):
            if torch.compiler.is_compiling():
                outputs = functional_call(self._module, dict(variables), (x,))
            elif (stacked := self._stack_outputs(variables, x, call)) is not None:
                outputs = stacked
            else:
                with self._install_tensors(variables):
                    outputs = self._module(x)
        if not isinstance(outputs, Tensor):
            raise FedloomError(
                f"the model's forward returns {object_text(outputs)}, not a tensor",
                advice="let forward return the outputs alone, [b, classes]",
            )
        outputs = self._as_dtype(outputs)
        features = self._as_dtype(call.head_inputs[-1]) if call.head_inputs else outputs
        taps = {name: self._as_dtype(tensor.flatten(1)) for name, tensor in call.taps.items()}
        # Tensors of a vmapped call must not outlive it.
        self._current.call = IDLE
        return Output(outputs, features, buffers, taps)

    def _stack_outputs(self, variables: Tree, x: Inputs, call: _Call) -> Tensor | None:
        """Return the outputs of a whole stack, if the module is a sequence of layers.

        None if it is no sequence, nothing is stacked, or functions act between layers.
        """
        sequence = None if self._watched or self._surrounded else self._sequence
        if sequence is None or not isinstance(x, Tensor):
            return None
        unwrapped = unwrap_stacks(x, *variables.values(), client_dim=0)
        if unwrapped is None:
            return None
        level, (inputs, *tensors) = unwrapped
        stacked = sequence.variables(inputs, dict(zip(variables, tensors, strict=True)))
        if stacked is None:
            return None
        with self._install_tensors(stacked):
            outputs, features = torch_internals.call_outside_transforms(sequence, inputs)
        if features is not None:
            call.head_inputs.append(torch_internals.add_batch_dim(features, 0, level))
        return torch_internals.add_batch_dim(outputs, 0, level)

    def stack_gradients(
        self,
        params: Tree,
        frozen: Tree,
        x: Inputs,
        loss: Callable[[Tensor], tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tree] | None:
        """Compute losses of a stack of clients and their gradients by hand, if that is possible.

        Args:
            params: Parameters that are trained, by name, [clients, ...].
            frozen: All other parameters.
            x: Inputs, [clients, b, ...].
            loss: Function from outputs to the loss of each client, [clients], and the gradients of
                the losses by the outputs.

        Returns:
            The losses and the gradients by ``params``. None if the network is more than linear
            layers, ReLU between them and an `nn.Flatten` before them.
        """
        if self._plain_sequence is None or not isinstance(x, Tensor):
            return None
        result = self._plain_sequence.gradients({**frozen, **params}, params, x, loss)
        return result and (result[0], {name: result[1][name] for name in params})

    def squared_gradients(
        self,
        params: Tree,
        buffers: Tree,
        x: Inputs,
        y: Tensor,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Return the squared length of each sample's gradient in evaluation mode, [b].

        Args:
            params: Weights by name.
            buffers: Buffers by name.
            x: Inputs, [b, ...].
            y: Labels, [b, ...].
            loss: Function from outputs [1, ...] and label [1, ...] of ONE sample to its loss.
        """

        def loss_of(outputs: Tensor, label: Tensor) -> Tensor:
            return loss(outputs[None], label[None])

        def loss_by_params(params: Tree, x: Inputs, label: Tensor) -> Tensor:
            sample = map_inputs(lambda tensor: tensor[None], x)
            return loss(self.eval(params, buffers, sample, nested=True).outputs, label[None])

        if self._plain_sequence is not None and isinstance(x, Tensor):
            slopes_of = torch.func.vmap(torch.func.grad(loss_of))
            squares = self._plain_sequence.squared_gradients(params, x, lambda z: slopes_of(z, y))
            if squares is not None:
                return squares
        of_sample = torch.func.vmap(torch.func.grad(loss_by_params), (None, 0, 0))
        leaves = of_sample(dict(params), x, y).values()
        return torch.stack([leaf.flatten(1).square().sum(1) for leaf in leaves]).sum(0)

    @property
    def _plain_sequence(self) -> LayerSequence | None:
        """The layers, if they are called one after another and nothing acts between them."""
        is_plain = not (self._frozen or self._mixed or self._watched or self._surrounded)
        return self._sequence if is_plain else None

    def _frozen_on(self, device: torch.device) -> dict[str, Tensor]:
        """Return the frozen weights on a device; they are copied once."""
        if device not in self._frozen_by_device:
            copies = {name: weight.to(device) for name, weight in self._frozen.items()}
            if torch.compiler.is_compiling():
                return copies
            self._frozen_by_device[device] = copies
        return self._frozen_by_device[device]

    def _computing(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if self._mixed else nullcontext()

    def _as_dtype(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if self._mixed else tensor

    @contextmanager
    def _install_tensors(self, variables: Tree) -> Iterator[None]:
        """Replace the module's tensors by these while the context is open.

        `torch.func.functional_call` does the same, but needs as long for it as a small model needs
        for a step. In a compiled program it costs nothing.
        """
        try:
            for name, tensor in variables.items():
                for store, key in self._slots[name]:
                    store[key] = tensor
            yield
        finally:
            for store, key, tensor in self._module_tensors:
                store[key] = tensor


def _copies(buffers: Tree, x: Inputs, params: Tree) -> dict[str, Tensor]:
    """Return copies of buffers that layers can change in place.

    The copies are contiguous, because a change would be lost in a strided view. In a stack, each
    client has its own copy, also of buffers that all clients share, such as the server's.
    """
    is_batched, contiguous = torch_internals.is_batched, torch.contiguous_format
    stacked = None
    if torch.compiler.is_compiling() or not _outside():
        inputs = [x] if isinstance(x, Tensor) else [*x.values()]
        stacked = next((leaf for leaf in (*inputs, *params.values()) if is_batched(leaf)), None)
    return {
        name: b.clone(memory_format=contiguous)
        if stacked is None or is_batched(b)
        else stacked.new_empty(b.shape, dtype=b.dtype).copy_(b)
        for name, b in buffers.items()
    }


def _clones(tensors: Tree) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _are_equal(tensor: Tensor, second: Tensor) -> bool:
    """Whether two tensors of one shape have the same values; nan equals nan."""
    return torch.equal(tensor, second) or bool(
        ((tensor == second) | ((tensor != tensor) & (second != second))).all()
    )


def _check_unchanged(unit: str, initial: Tree, present: Tree, mode: str) -> None:
    """Refuse weights or buffers that a pass has changed in place.

    Args:
        unit: ``weight`` or ``buffer``.
        initial: Values before the pass, by name.
        present: Values after it.
        mode: ``training`` or ``evaluation``.

    Raises:
        FedloomError: For the first that differs.
    """
    advice = "compute with a changed copy, such as `weight.clamp(-1, 1)`"
    if unit == "buffer":
        advice = "change it in training mode alone, `if self.training:`"
    for name, tensor in present.items():
        if not _are_equal(initial[name], tensor):
            raise FedloomError(
                f"forward of the model changes its {unit} {name} in {mode} mode", advice=advice
            )


def _outside() -> bool:
    """Whether no transform of `torch.func` is active."""
    return torch_internals.innermost_transform() is None


def _images_last(x: Tensor) -> Tensor:
    """Return images with channels last; in a stack of clients, tensors stay as they are."""
    is_single = not torch.compiler.is_compiling() and not torch_internals.is_batched(x)
    if x.dim() == 4 and is_single:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def _example(x: Tensor) -> Tensor:
    """Return `EXAMPLES` inputs of the shape and type of ``x``, [b, ...], on the CPU."""
    zeros = torch.zeros((EXAMPLES, *x.shape[1:]), dtype=x.dtype)
    if not x.is_floating_point():
        return zeros
    return torch.arange(zeros.numel()).sin().to(x.dtype).reshape(zeros.shape)
