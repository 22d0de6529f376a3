"""A PyTorch module as a pure function of its weights, its buffers and its input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fl.api.trees import Inputs, Tree, each
from fl.base.errors import FedloomError
from fl.pytorch import private
from fl.pytorch.draws import ALLOWED, Draws, culprit, drawn_since, streams
from fl.pytorch.folding import fold, stacks
from fl.pytorch.functions import calls, draws_numbers, replaced
from fl.pytorch.sequences import Sequence

NOTHING: Mapping[str, Tensor] = {}

Alter = Mapping[str, Callable[[Tensor], Tensor]]
"""By layer, what is done to what it gives, of the same shape."""

UNALTERED: Alter = {}

Around = Mapping[str, Callable[[nn.Module, Callable[[Tensor], Tensor], Tensor], Tensor]]
"""By layer, what is called in its place: given the layer, its own function and its input."""

PLAIN: Around = {}


class Output(NamedTuple):
    """What a pass through the network gives.

    outputs: [b, classes]; features: what goes into the head, [b, d];
    buffers: the buffers afterwards; taps: what the layers asked for by `Network.tap` gave, altered
    where they are altered.
    """

    outputs: Tensor
    features: Tensor
    buffers: dict[str, Tensor]
    taps: Mapping[str, Tensor] = NOTHING


@dataclass(frozen=True)
class _Call:
    """One pass through the module: what its layers are to do in it, and what they leave behind.

    alter, around: see `Network.train`. taps: by layer, what it gave; into_head: what went into the
    head, the last of which counts. Both are new in each call: what is there already would outlive a
    compiled one, with vmapped tensors in it.
    """

    alter: Alter
    around: Around
    taps: dict[str, Tensor] = field(default_factory=dict)
    into_head: list[Tensor] = field(default_factory=list)


IDLE = _Call(UNALTERED, PLAIN)
"""Between calls."""


@dataclass
class _Current:
    """The call that a module is in. Views that share a module share this too."""

    call: _Call = IDLE


class Network:
    """A module whose weights and buffers are passed in and returned.

    *Variables* are ``{"params": {name: tensor}, "buffers": {name: tensor}}``, named as in the
    module. ``make`` builds the module; its own random initialisation is used, under a seed.

    dtype: of the weights, and of what goes in and comes out. mixed, channels_last: how it computes
    in between, see `fl.api.training.Training`.

    names: all names, by kind. head: those of the last linear layer, the classifier; the rest is the
    *body*. batch_norm: those of batch normalisation, running statistics included. random: whether
    a pass in training mode draws random numbers (dropout, stochastic depth): what its layers tell,
    and after `probe` what it does. of_tokens: whether inputs are whole numbers that it looks up.
    of_batches: whether a pass in evaluation mode normalises by the batch, having no running
    statistics, so that a sample's outputs depend on those beside it. folds: whether a stack of it
    has channels last on a CPU, as compiled programs do not. plain: whether it is plain layers one
    after another. blocks: layers that the module names as its stages, by an attribute ``blocks``;
    mostly none.
    """

    def __init__(
        self,
        make: Callable[[], nn.Module],
        dtype: torch.dtype = torch.float32,
        *,
        mixed: bool = False,
        channels_last: bool = False,
    ) -> None:
        self._make, self._dtype = make, dtype
        self._mixed, self._channels_last = mixed, channels_last
        self._origin = self
        self._install(make())
        self.plain = self._sequence is not None
        self.names = {
            "params": [name for name, _ in self._module.named_parameters()],
            "buffers": [name for name, _ in self._module.named_buffers()],
        }
        self.head = self._of(self.layers(nn.Linear)[-1:])
        self.batch_norm = self._of(self.layers(private.BatchNorm))
        self._probed = False
        layers = list(self._module.modules())
        self._replace, self._random = any(map(calls, layers)), any(map(draws_numbers, layers))
        self._watched: set[str] = set()
        self._tapped: set[str] = set()
        self._surrounded: set[str] = set()
        self.of_tokens = bool(self.layers(nn.Embedding))
        self.of_batches = any(private.by_batch(layer) for layer in layers)
        self.blocks: tuple[str, ...] = tuple(getattr(self._module, "blocks", ()))

    def _install(self, module: nn.Module) -> None:
        """Use this module, which no other network uses, for all passes."""
        self._module, self._shares_module = module, False
        self.folds = fold(module)
        self._sequence = Sequence.of(module, self.folds)
        self._slots = _slots(module)
        self._own = [(kept, k, kept[k]) for slots in self._slots.values() for kept, k in slots]
        self._current = _Current()
        for name in self.layers(nn.Linear)[-1:]:
            module.get_submodule(name).register_forward_pre_hook(self._note)

    @property
    def origin(self) -> Network:
        """The network of which this is a view; the network itself, if it is none."""
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
        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            self._install(self._make())
        watched, surrounded = self._watched, self._surrounded
        self._watched, self._surrounded = set(), set()
        self._watch(watched)
        self.surround(surrounded)

    def layers(self, *kinds: type[nn.Module]) -> list[str]:
        """The names of the layers of these kinds, in the module's order."""
        return [name for name, layer in self._module.named_modules() if isinstance(layer, kinds)]

    def _of(self, layers: list[str]) -> frozenset[str]:
        owned = [f"{layer}." if layer else "" for layer in layers]
        names = [name for kind in self.names.values() for name in kind]
        return frozenset(name for name in names if name.startswith(tuple(owned)) and owned)

    def _note(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._current.call.into_head.append(inputs[0])

    def tap(self, layers: Iterable[str]) -> None:
        """Let every pass from now on return what the layers of these names give, `Output.taps`.

        Raises `FedloomError` if the model has no such layer.
        """
        self._watch(layers)
        self._tapped.update(layers)

    def alter(self, layers: Iterable[str]) -> None:
        """Let `train` alter what the layers of these names give. Raises as `tap` does."""
        self._watch(layers)

    def surround(self, layers: Iterable[str]) -> None:
        """Let `train` and `eval` call other functions in place of the layers of these names."""
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
        there = {name: layer for name, layer in self._module.named_modules() if name}
        added = [name for name in layers if name not in self._watched]
        for name in added:
            if name not in there:
                kinds = [f"{known!r} ({type(layer).__name__})" for known, layer in there.items()]
                raise FedloomError(
                    f"layers: the model has no layer {name!r}. Allowed: {', '.join(kinds)}"
                )
        if added:
            self._separate()
        for name in added:
            self._module.get_submodule(name).register_forward_hook(partial(self._passed, name))
            self._watched.add(name)

    def _passed(self, name: str, layer: nn.Module, inputs: object, output: object) -> Tensor:
        """What comes out of a watched layer: altered first, then seen by taps."""
        if not isinstance(output, Tensor):
            raise FedloomError(
                f"layers: {name} gives a {type(output).__name__}. Allowed: a layer that gives one "
                "tensor"
            )
        if name in self._current.call.alter:
            output = self._current.call.alter[name](self._given(output)).to(output.dtype)
        if name in self._tapped:
            self._current.call.taps[name] = output
        return output

    def init(self, seed: int) -> Tree:
        """Freshly initialised variables on the CPU, the same for the same seed on any device."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = self._make()
        module.to(self._dtype)
        return {
            "params": {name: p.detach() for name, p in module.named_parameters()},
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
        """A pass in training mode: running statistics move.

        nested: say so where a gradient is taken through a gradient, see `fl.pytorch.functions`.
        key: the batch's, where it has one. alter: what is done in this pass to what layers give, of
        those named to `alter` before; it gets and gives the network's own precision. around: what
        is called in this pass in place of layers, of those named to `surround` before.
        """
        # First whether it is compiled, so that a program does not depend on what was probed.
        if not torch.compiler.is_compiling() and not self._origin._probed and _outside():
            self.probe(x)
        # Contiguous, as parts of a view that is none would move where nobody sees it.
        whole = torch.contiguous_format
        moved = {name: b.clone(memory_format=whole) for name, b in buffers.items()}
        self._mode(True)
        if not self._origin._replace and not nested:
            return self._run({**params, **moved}, moved, x, _Call(alter, around))
        with replaced(Draws(key, nested)):
            return self._run({**params, **moved}, moved, x, _Call(alter, around))

    def eval(
        self,
        params: Tree,
        buffers: Tree,
        x: Inputs,
        nested: bool = False,
        around: Around = PLAIN,
    ) -> Output:
        """A pass in evaluation mode: nothing changes, and nothing is altered.

        nested, around: see `train`.
        """
        self._mode(False)
        with replaced(Draws(None, nested)) if nested else nullcontext():
            return self._run({**params, **buffers}, dict(buffers), x, _Call(UNALTERED, around))

    def probe(self, x: Inputs) -> None:
        """Find out which random numbers a pass over inputs such as x, [b, ...], draws.

        `random` says afterwards whether there are any. Raises `FedloomError` for numbers that no
        key decides: they would make a run depend on what ran before it.
        """
        if self._origin is not self:
            self._origin.probe(x)
            return
        self._probed = True
        variables = self.init(0)
        x = each(_example, x)
        before, draws = streams(), Draws(torch.arange(2))
        first = self._tried(variables, x, draws)
        again = self._tried(variables, x, Draws(draws.key))
        if drawn_since(before):
            layer = culprit(self._module, lambda: self._tried(variables, x, Draws(draws.key)))
            raise FedloomError(f"{layer} draws random numbers that no key decides; {ALLOWED}")
        self._tried(variables, x)
        if drawn_since(before):
            layer = culprit(self._module, lambda: self._tried(variables, x))
            raise FedloomError(f"{layer} draws random numbers in evaluation mode. Allowed: none")
        if not torch.equal(first.nan_to_num(), again.nan_to_num()):
            raise FedloomError(f"the model gives two results for one input and one key; {ALLOWED}")
        self._random = self._random or draws.drawn
        self._replace = self._replace or draws.drawn or draws.wanted

    @torch.no_grad()
    def _tried(self, variables: Tree, x: Inputs, draws: Draws | None = None) -> Tensor:
        """The outputs of a pass of which nothing else stays; without draws, in evaluation mode."""
        self._mode(draws is not None)
        buffers = {name: b.clone() for name, b in variables["buffers"].items()}
        with replaced(draws) if draws else nullcontext():
            return self._run(
                {**variables["params"], **buffers}, buffers, x, _Call(UNALTERED, PLAIN)
            ).outputs

    def _mode(self, training: bool) -> None:
        # A compiled program must not depend on the mode that was set before.
        if torch.compiler.is_compiling() or self._module.training != training:
            self._module.train(training)

    def _run(self, variables: Tree, buffers: dict[str, Tensor], x: Inputs, call: _Call) -> Output:
        if self._channels_last:
            x = each(_images_last, x)
        self._current.call = call
        first = x if isinstance(x, Tensor) else next(iter(x.values()))
        with self._computing(first.device):
            if torch.compiler.is_compiling():
                outputs = functional_call(self._module, dict(variables), (x,))
            elif (stacked := self._at_once(variables, x, call)) is not None:
                outputs = stacked
            else:
                with self._in_place(variables):
                    outputs = self._module(x)
        outputs = self._given(outputs)
        features = self._given(call.into_head[-1]) if call.into_head else outputs
        taps = {name: self._given(tensor.flatten(1)) for name, tensor in call.taps.items()}
        # Tensors of a vmapped call must not outlive it.
        self._current.call = IDLE
        return Output(outputs, features, buffers, taps)

    def _at_once(self, variables: Tree, x: Inputs, call: _Call) -> Tensor | None:
        """The outputs for a whole stack, where the module is a sequence of layers; None where it is
        not, where nothing is stacked, or where something is to be done between layers.
        """
        sequence = None if self._watched or self._surrounded else self._sequence
        if sequence is None or not isinstance(x, Tensor):
            return None
        inside = stacks(x, *variables.values(), at=0)
        if inside is None:
            return None
        level, (inputs, *given) = inside
        whole = sequence.variables(inputs, dict(zip(variables, given, strict=True)))
        if whole is None:
            return None
        with self._in_place(whole):
            outputs, features = private.outside(sequence, inputs)
        if features is not None:
            call.into_head.append(private.add_batch_dim(features, 0, level))
        return private.add_batch_dim(outputs, 0, level)

    def _computing(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if self._mixed else nullcontext()

    def _given(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if self._mixed else tensor

    @contextmanager
    def _in_place(self, variables: Tree) -> Iterator[None]:
        """The module with these tensors in place of its own.

        `torch.func.functional_call` does this too, but takes as long for it as a small model for a
        step; compiled, it costs nothing.
        """
        try:
            for name, tensor in variables.items():
                for kept, key in self._slots[name]:
                    kept[key] = tensor
            yield
        finally:
            for kept, key, tensor in self._own:
                kept[key] = tensor


def _outside() -> bool:
    """Whether no transform of `torch.func` is at work."""
    return private.innermost_transform() is None


def _images_last(x: Tensor) -> Tensor:
    """Images with channels last. In a stack of clients a tensor has no format of its own."""
    alone = not torch.compiler.is_compiling() and not private.is_batched(x)
    if x.dim() == 4 and alone:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def _example(x: Tensor) -> Tensor:
    """Two inputs such as ``x``, [b, ...], on the CPU."""
    made = torch.zeros((2, *x.shape[1:]), dtype=x.dtype)
    if not x.is_floating_point():
        return made
    return torch.arange(made.numel()).sin().to(x.dtype).reshape(made.shape)


Slot = tuple[dict[str, Any], str]


def _slots(module: nn.Module) -> dict[str, list[Slot]]:
    """Where a module keeps each named tensor; a shared one is kept in several places."""
    slots: dict[int, tuple[str, list[Slot]]] = {}
    for prefix, layer in module.named_modules():
        for kept in private.slots(layer):
            for key, tensor in kept.items():
                if tensor is not None:
                    name = f"{prefix}.{key}" if prefix else key
                    slots.setdefault(id(tensor), (name, []))[1].append((kept, key))
    return dict(slots.values())
