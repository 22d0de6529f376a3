"""Declarations of methods, which can be read without importing the method's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, dataclass_transform

from fl.base.errors import FedloomError

Stage = Literal["global", "personal"]
Need = Literal["val", "server"]
Class = TypeVar("Class")


@dataclass(frozen=True)
class MethodDeclaration:
    """Properties of a method beside its hyper-parameters, see `declare`.

    Attributes:
        stages: Stages that the method evaluates: ``global``, ``personal``.
        title: Name in tables.
        tasks: Tasks that it supports, see `fl.api.task.tasks_of`.
        independent: Clients learn nothing from each other, so clients that are held out of
            training may train too.
        starts: It begins with a stored model, ``start:`` of its entry: ``any`` shared model, or
            the result of one of the named methods.
        distils: Its views have ``images`` of every class, on which other methods may train.
        needs: ``val``: validation samples of every participant; ``server``: labelled samples on
            which its server trains (`fl.api.method.BuildContext`).
        training: Values of training keys that override ``training:`` of a study; an entry overrides
            them.
        modalities: Clients of several modalities can share its server, because the server only
            averages, or distinguishes them by `MODALITY`. It then gets the uploads of all clients
            as one stack, with zeros for weights that a client does not have.
        one_input: It uses inputs as one tensor, so that samples with several inputs are refused.
    """

    stages: tuple[str, ...]
    title: str
    tasks: tuple[str, ...] = ("classification",)
    independent: bool = False
    starts: tuple[str, ...] = ()
    distils: bool = False
    needs: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    modalities: bool = False
    one_input: bool = False

    @property
    def required_starts(self) -> tuple[str, ...]:
        """Methods with whose result it must begin; empty if any shared model is allowed."""
        return () if self.starts == ("any",) else self.starts

    @property
    def needs_validation(self) -> bool:
        """Whether every participant needs validation samples."""
        return "val" in self.needs

    @property
    def needs_server_data(self) -> bool:
        """Whether the server needs its own labelled samples."""
        return "server" in self.needs


@dataclass_transform(frozen_default=True)
def declare(
    *stages: Stage,
    title: str = "",
    tasks: tuple[str, ...] | Literal["any"] = ("classification",),
    independent: bool = False,
    starts: tuple[str, ...] | Literal["any"] = (),
    distils: bool = False,
    needs: tuple[Need, ...] = (),
    training: Mapping[str, Any] | None = None,
    modalities: bool = False,
    one_input: bool = False,
) -> Callable[[type[Class]], type[Class]]:
    """Make a class a method: a frozen dataclass of hyper-parameters with declared properties.

    Args:
        stages: Evaluated stages: the shared model (``global``), clients' own models (``personal``).
        title: Name in tables; by default the name of the class.
        tasks: Tasks that it supports.
        independent: Whether clients learn nothing from each other.
        starts: Methods with whose result it begins.
        distils: Whether its views have images to train on.
        needs: Data that it needs.
        training: Its values of training keys.
        modalities: Whether its server can serve clients of several modalities.
        one_input: Whether it uses inputs as one tensor.

    `MethodDeclaration` explains them.
    """
    declaration = MethodDeclaration(
        stages=stages,
        title=title,
        tasks=("any",) if tasks == "any" else tasks,
        independent=independent,
        starts=("any",) if starts == "any" else starts,
        distils=distils,
        needs=needs,
        training=training or {},
        modalities=modalities,
        one_input=one_input,
    )

    def make_method(cls: type[Class]) -> type[Class]:
        if "__dataclass_fields__" in vars(cls):
            problem = f"{cls.__name__}: has both @declare and @dataclass"
            raise FedloomError(problem, advice="remove @dataclass, which @declare includes")
        for name, value in {**vars(declaration), "title": title or cls.__name__}.items():
            setattr(cls, name, value)
        return dataclass(frozen=True)(cls)

    return make_method


def declaration_of(target: Any) -> MethodDeclaration:
    """Return the declaration of a method or of its class."""
    cls = target if isinstance(target, type) else type(target)
    defaults = {"title": cls.__name__, "stages": ()}
    names = [declared_field.name for declared_field in fields(MethodDeclaration)]
    declared = {name: getattr(cls, name) for name in names if hasattr(cls, name)}
    return MethodDeclaration(**defaults | declared)
