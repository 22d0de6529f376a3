"""Pickles of others, read without running what is in them.

A pickle is a program: the plain ``pickle.load`` runs whatever its author wrote, and even a few
names that look harmless are enough to crash it. So this is a reader of its own for the instructions
that data needs. It knows text, numbers, lists, tuples and dictionaries, and by `fl.data.pickled`
numpy's arrays; it calls nothing, refuses everything else by name, and holds no more in memory than
the file has.
"""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fl.base.errors import DataError
from fl.data.archives import name_of
from fl.data.pickled import KNOWN, Named, Refused, Unfinished

BYTES = 1 << 32
"""How long a pickle may be; the largest that is published has 0.3 GB."""
STEPS = 10_000_000
"""How many instructions it may have, and values: the largest has 0.3 million."""
DEPTH = 16
"""How deep containers may lie in containers."""
PIECE = 1 << 26
LINE, DIGITS = 1 << 20, 9

NUMBERS = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
CONSTANTS = {b"N": None, b"\x88": True, b"\x89": False}
STRINGS = {b"T": "<i", b"U": "<B", b"B": "<I", b"C": "<B", b"\x8e": "<Q", b"\x96": "<Q"}
TEXTS = {b"X": "<I", b"\x8c": "<B", b"\x8d": "<Q"}
PUTS, GETS = {b"q": "<B", b"r": "<I"}, {b"h": "<B", b"j": "<I"}
TUPLES = {b")": 0, b"\x85": 1, b"\x86": 2, b"\x87": 3}
KEYS = (bytes, str, int, float, bool, type(None))
LEAVES = (*KEYS, np.ndarray, np.generic)


def load(stream: Path | BinaryIO) -> Any:
    """What is pickled in a file or a stream: arrays, numbers, text, lists, tuples, dictionaries.

    Text of Python 2 and bytearrays become bytes; arrays of objects become lists. Arrays cannot be
    written to.

    Raises:
        DataError: If the pickle is damaged or asks for anything else; it names the file and what is
            asked for.
    """
    title = name_of(stream)
    try:
        if isinstance(stream, Path):
            with stream.open("rb") as file:
                return _Machine(file).run()
        return _Machine(stream).run()
    except DataError:
        raise  # The archive that it is in is damaged.
    except Refused as error:
        raise DataError(
            f"{title}: asks for {error}; allowed in a pickle: numpy arrays, numbers, text and"
            " containers of them; nothing of it was run. Get the file from its publisher"
        ) from None
    except Exception as error:  # What is damaged can be wrong in any way.
        raise DataError(
            f"{title}: is no complete pickle ({type(error).__name__}: {error}); delete the file, or"
            " the archive that it is in, to fetch it again"
        ) from error


class _Machine:
    """A stack of values, marks in it, and numbered values that come again."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, BYTES
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Follow the instructions to the end; the value that they leave."""
        for _ in range(STEPS):
            code = self._read(1)
            if code == b".":
                value = self._pop()
                _weigh(value, {})
                return value
            if code not in INSTRUCTIONS:
                raise Refused(f"the instruction {code!r}")
            INSTRUCTIONS[code](self)
        raise ValueError(f"it has more than {STEPS:,} instructions")

    def _read(self, count: int) -> bytes:
        self._spend(count)
        # In pieces, as a reader makes room for all that it is asked for, whether or not it comes.
        sizes = [min(PIECE, count - at) for at in range(0, count, PIECE)]
        pieces: list[bytes] = []
        for size in sizes:
            pieces.append(self._stream.read(size))
            if len(pieces[-1]) != size:
                raise EOFError("it ends early")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _spend(self, count: int) -> None:
        if not 0 <= count <= self._left:
            raise ValueError(f"it states {count:,} bytes; allowed: up to {BYTES:,} in all")
        self._left -= count

    def _number(self, form: str) -> Any:
        return struct.unpack(form, self._read(struct.calcsize(form)))[0]

    def _line(self) -> bytes:
        line = self._stream.readline(LINE)
        self._spend(len(line))
        if not line.endswith(b"\n"):
            raise EOFError("a line has no end")
        return line[:-1]

    def _push(self, value: Any) -> None:
        self._stack.append(value)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("it takes a value where there is none")
        return self._stack.pop()

    def _pop_mark(self) -> list[Any]:
        mark = self._marks.pop()
        values = self._stack[mark:]
        del self._stack[mark:]
        return values

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def skip(self, count: int) -> None:
        self._read(count)

    def constant(self, value: Any) -> None:
        self._push(value)

    def number(self, form: str) -> None:
        self._push(self._number(form))

    def string(self, form: str) -> None:
        self._push(self._read(self._number(form)))

    def text(self, form: str) -> None:
        self._push(self._read(self._number(form)).decode())

    def whole(self) -> None:
        line = self._line().removesuffix(b"L")
        if len(line) > 20:
            raise ValueError("a number has more than 20 digits")
        self._push({b"00": False, b"01": True}[line] if line in (b"00", b"01") else int(line))

    def long(self) -> None:
        size = self._number("<B")
        if size > DIGITS:
            raise ValueError(f"a number has {size} bytes; allowed: {DIGITS}")
        self._push(int.from_bytes(self._read(size), "little", signed=True))

    def decimal(self) -> None:
        self._push(float(self._line()[:40]))

    def quoted(self) -> None:
        line = self._line().strip()
        if len(line) < 2 or line[:1] not in (b"'", b'"') or line[-1:] != line[:1]:
            raise ValueError("text has no quotes")
        self._push(codecs.escape_decode(line[1:-1])[0])

    def escaped(self) -> None:
        text = self._line().decode("raw-unicode-escape")
        text.encode()  # Half a character is damage, as in the other forms of text.
        self._push(text)

    def new_list(self) -> None:
        self._push([])

    def new_dict(self) -> None:
        self._push({})

    def several(self, count: int) -> None:
        values = [self._pop() for _ in range(count)]
        self._push(tuple(reversed(values)))

    def tuple_from_mark(self) -> None:
        self._push(tuple(self._pop_mark()))

    def list_from_mark(self) -> None:
        self._push(self._pop_mark())

    def dict_from_mark(self) -> None:
        values = self._pop_mark()
        self._push({})
        self._set(values)

    def append(self) -> None:
        self._add([self._pop()])

    def extend(self) -> None:
        self._add(self._pop_mark())

    def set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._set([key, value])

    def set_items(self) -> None:
        self._set(self._pop_mark())

    def _add(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def _set(self, values: list[Any]) -> None:
        for key in values[::2]:
            if type(key) not in KEYS:
                raise Refused(f"a key that is a {type(key).__name__}")
        self._top(dict).update(zip(values[::2], values[1::2], strict=True))

    def _top(self, kind: type) -> Any:
        target = self._pop()
        if type(target) is not kind:
            raise ValueError(f"a {type(target).__name__} where a {kind.__name__} is expected")
        self._push(target)
        return target

    def put(self, form: str) -> None:
        self._store(self._number(form))

    def put_line(self) -> None:
        self._store(int(self._line()[:20]))

    def put_next(self) -> None:
        self._store(len(self._memo))

    def _store(self, index: int) -> None:
        self._memo[index] = value = self._pop()
        self._push(value)

    def get(self, form: str) -> None:
        self._fetch(self._number(form))

    def get_line(self) -> None:
        self._fetch(int(self._line()[:20]))

    def _fetch(self, index: int) -> None:
        value = self._memo[index]
        if isinstance(value, Unfinished):
            value = value.made
            if value is None:
                raise Refused("an array within itself")
        self._push(value)

    def named(self) -> None:
        module, name = self._line(), self._line()
        self._name(module.decode(), name.decode())

    def named_by_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if type(name) is not str or type(module) is not str:
            raise ValueError("a name is no text")
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        full = f"{module[:100]}.{name[:100]}"
        if full not in KNOWN:
            raise Refused(full)
        self._push(KNOWN[full])

    def make(self) -> None:
        arguments, named = self._pop(), self._pop()
        if type(named) is not Named or type(arguments) is not tuple:
            raise Refused("a call of something that is no name")
        if named.make is None:
            raise Refused(f"a call of {named.name}")
        self._spend_on(arguments)
        self._push(named.make(arguments))

    def _spend_on(self, parts: tuple[Any, ...]) -> None:
        # The same bytes can be asked for time and again, and each time they are looked through.
        self._spend(sum(len(part) for part in parts if type(part) in (bytes, str)))

    def finish(self) -> None:
        state, target = self._pop(), self._pop()
        if not isinstance(target, Unfinished) or target.made is not None:
            raise Refused(f"a state of a {type(target).__name__}")
        if type(state) is not tuple:
            raise ValueError("a state is no tuple")
        self._spend_on(state)
        self._push(target.finish(state))


def _weigh(value: Any, known: dict[int, tuple[int, int]], level: int = 0) -> tuple[int, int]:
    """How many values there are in ``value``, and how deep they lie.

    What is in two places counts twice, as whoever walks through it meets it twice: a few lists that
    hold each other are more than can ever be walked through.
    """
    if type(value) not in (list, tuple, dict):
        if not isinstance(value, LEAVES):
            raise Refused(f"a value that is a {type(value).__name__}")
        return 1, 0
    if id(value) not in known and level <= DEPTH:
        inner = value.values() if type(value) is dict else value
        found = [_weigh(part, known, level + 1) for part in inner]
        known[id(value)] = 1 + sum(n for n, _ in found), 1 + max((d for _, d in found), default=0)
    total, depth = known.get(id(value), (0, DEPTH + 1))
    if total > STEPS or depth > DEPTH:
        raise Refused(f"more than {STEPS:,} values, or deeper than {DEPTH} in each other")
    return total, depth


Step = Callable[[_Machine], None]


def _given(step: Callable[[_Machine, Any], None], forms: dict[bytes, Any]) -> dict[bytes, Step]:
    """The instructions that differ in one argument only."""
    return {
        code: lambda machine, argument=form: step(machine, argument)  # type: ignore[misc]
        for code, form in forms.items()
    }


INSTRUCTIONS: dict[bytes, Step] = {
    **_given(_Machine.skip, {b"\x80": 1, b"\x95": 8}),
    **_given(_Machine.constant, CONSTANTS),
    **_given(_Machine.number, NUMBERS),
    **_given(_Machine.string, STRINGS),
    **_given(_Machine.text, TEXTS),
    **_given(_Machine.several, TUPLES),
    **_given(_Machine.put, PUTS),
    **_given(_Machine.get, GETS),
    b"(": _Machine.mark,
    b"I": _Machine.whole,
    b"L": _Machine.whole,
    b"\x8a": _Machine.long,
    b"F": _Machine.decimal,
    b"S": _Machine.quoted,
    b"V": _Machine.escaped,
    b"]": _Machine.new_list,
    b"}": _Machine.new_dict,
    b"t": _Machine.tuple_from_mark,
    b"l": _Machine.list_from_mark,
    b"d": _Machine.dict_from_mark,
    b"a": _Machine.append,
    b"e": _Machine.extend,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
    b"p": _Machine.put_line,
    b"\x94": _Machine.put_next,
    b"g": _Machine.get_line,
    b"c": _Machine.named,
    b"\x93": _Machine.named_by_stack,
    b"R": _Machine.make,
    b"b": _Machine.finish,
}
"""By the byte that stands for it, as the standard library's pickletools describes it."""
