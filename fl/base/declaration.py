"""What the class of a method declares of it, which can be read without the method's arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, dataclass_transform

from fl.base.errors import FedloomError

Stage = Literal["global", "personal"]
Need = Literal["val", "server"]
Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Declared:
    """What a method says of itself beside its hyper-parameters, see `declare`.

    stages: the views that it has. title: its name in tables. tasks: which it serves, see
    `fl.api.task.tasks_of`.
    alone: clients learn nothing from each other, so those held out of training may train too.
    starts: it begins from a stored model, ``start:`` of its entry; `any` one that is shared, or the
    result of one of the methods named.
    distils: its views have ``images`` of every class, which others may train on.
    needs: `val`, validation samples of every participant; `server`, labelled samples that its
    server trains on (`fl.api.method.BuildContext.at_server`).
    training: values of training keys that it sets where a study does not.
    modalities: clients of several modalities can share its server, as that only averages
    (`Averaging`), or tells them apart itself by `MODALITY`: it then sees what all of them sent as
    one stack, with zeros for weights that a client lacks.
    one_input: it computes with inputs as one tensor, which several inputs of a sample are not.
    """

    stages: tuple[str, ...]
    title: str
    tasks: tuple[str, ...] = ("classification",)
    alone: bool = False
    starts: tuple[str, ...] = ()
    distils: bool = False
    needs: tuple[str, ...] = ()
    training: Mapping[str, Any] = field(default_factory=dict)
    modalities: bool = False
    one_input: bool = False

    @property
    def goes_on(self) -> tuple[str, ...]:
        """The methods whose result it must begin from; none where any shared model will do."""
        return () if self.starts == ("any",) else self.starts

    @property
    def validates(self) -> bool:
        """Whether every participant needs validation samples."""
        return "val" in self.needs

    @property
    def server_data(self) -> bool:
        """Whether the server needs labelled samples of its own."""
        return "server" in self.needs


@dataclass_transform(frozen_default=True)
def declare(
    *stages: Stage,
    title: str = "",
    tasks: tuple[str, ...] | Literal["any"] = ("classification",),
    alone: bool = False,
    starts: tuple[str, ...] | Literal["any"] = (),
    distils: bool = False,
    needs: tuple[Need, ...] = (),
    training: Mapping[str, Any] | None = None,
    modalities: bool = False,
    one_input: bool = False,
) -> Callable[[type[Kind]], type[Kind]]:
    """Make a class a method: a frozen dataclass of hyper-parameters that declares the rest here.

    Args:
        stages: The views that it has: the shared model (`global`), clients' own (`personal`).
        title: Its name in tables, where that is not the class's.
        tasks, alone, starts, distils, needs, training, modalities, one_input: See `Declared`.
    """
    said = Declared(
        stages=stages,
        title=title,
        tasks=("any",) if tasks == "any" else tasks,
        alone=alone,
        starts=("any",) if starts == "any" else starts,
        distils=distils,
        needs=needs,
        training=training or {},
        modalities=modalities,
        one_input=one_input,
    )

    def made(kind: type[Kind]) -> type[Kind]:
        if "__dataclass_fields__" in vars(kind):
            problem = "is a dataclass under @declare, which makes it one"
            raise FedloomError(f"{kind.__name__}: {problem}. Allowed: @declare(...) alone")
        for name, value in {**vars(said), "title": title or kind.__name__}.items():
            setattr(kind, name, value)
        return dataclass(frozen=True)(kind)

    return made


def declared(target: Any) -> Declared:
    """What a method, or its class, declares."""
    kind = target if isinstance(target, type) else type(target)
    given = {"title": kind.__name__, "stages": ()}
    names = (declared_field.name for declared_field in fields(Declared))
    return Declared(**given | {name: getattr(kind, name) for name in names if hasattr(kind, name)})
