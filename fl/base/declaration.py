"""What the class of a method declares of it, which can be read without the method's arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Declared:
    """What the class of a method says of it beside its hyper-parameters, by class variables.

    stages: the views that it has; the one variable that every method needs. title: its name in
    tables, where that is not the class's. alone: clients learn nothing from each other, so those
    held out of training may train too. starts: it begins from a stored model, ``start:`` of its
    entry; distils: its views have ``images`` of every class, which others may train on; goes_on:
    the methods whose result that must be (none: any with a shared model). validates: every
    participant needs validation samples. training: values of training keys that it sets where a
    study does not. sends_own: a client goes on with weights of its own and sends them too. short:
    hyper-parameters under which a run of two rounds shows all that it does, for tests of every
    method. light: hyper-parameters of which it has less to do and is the same otherwise, for
    the rehearsal of a study. modalities: clients of several modalities can share its server, as
    that only averages (`Averaging`), or tells them apart itself by `MODALITY`: it then sees
    what all of them sent as one stack, with zeros for weights that a client lacks. one_input: it
    computes with inputs as one tensor, which several inputs of a sample are not. server_data: its
    server trains on labelled samples that it holds itself, `fl.api.method.Setting.at_server`.
    """

    stages: tuple[str, ...]
    title: str
    alone: bool = False
    starts: bool = False
    distils: bool = False
    goes_on: tuple[str, ...] = ()
    validates: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    sends_own: bool = False
    short: Mapping[str, Any] = field(default_factory=dict)
    light: Mapping[str, Any] = field(default_factory=dict)
    modalities: bool = False
    one_input: bool = False
    server_data: bool = False


def declared(target: Any) -> Declared:
    """What a method, or its class, declares."""
    kind = target if isinstance(target, type) else type(target)
    given = {"title": kind.__name__, "stages": ()}
    names = (one.name for one in fields(Declared))
    return Declared(**given | {name: getattr(kind, name) for name in names if hasattr(kind, name)})
