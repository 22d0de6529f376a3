"""Names and docstrings are in the field's words: bounds on those that say nothing by themselves."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import fl

FOLDER = Path(fl.__file__).parent

SAY_NOTHING = """
told said tell seen see known knows kept given gives made taken found held done left
begun over there here its their mine ours yours this that those these which what who
whom whose each every all any some none both either other others another one ones own
two now then before after again still more less most least enough few many together
apart alone along away within without beside besides else instead rest part parts thing
things whole half same alike such so as be is was has have had can may must would wrong
right good bad asked asks wanted wants lacking lacks due usual meant means came comes
went goes put
"""
"""Pronouns, participles and adverbs: none of them says what a value is."""

FRAGMENT = re.compile(
    r"(Of|That of|Those of|As|The same|What|Who|Whose|Which|Where|How|Why|When|In place of|Not)\b"
)
"""A docstring that begins so cannot be read without the name above it."""


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of every module of the package by its path."""
    return {
        str(path.relative_to(FOLDER)): ast.parse(path.read_text())
        for path in sorted(FOLDER.rglob("*.py"))
    }


def bound_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield every name that code binds, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node.lineno
            case ast.arg():
                yield node.arg, node.lineno
            case ast.Name(ctx=ast.Store()):
                yield node.id, node.lineno
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr, node.lineno


def test_names_say_what_they_hold() -> None:
    """Those left are keys of configs whose names are part of every run's name."""
    empty = [
        f"{path}:{line}: {name}"
        for path, tree in trees().items()
        for name, line in bound_names(tree)
        if name.lstrip("_").lower() in SAY_NOTHING.split()
    ]
    assert len(empty) < 60, "\n".join(empty)


def test_docstrings_are_read_without_the_name_above_them() -> None:
    fragments = [
        f"{path}:{node.lineno}: {text.splitlines()[0]}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and (text := ast.get_docstring(node))
        and FRAGMENT.match(text)
    ]
    assert len(fragments) < 30, "\n".join(fragments)


def test_a_constant_name_has_one_meaning() -> None:
    modules: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees().items():
        for node in tree.body:
            match node:
                case ast.Assign(targets=targets):
                    names = targets
                case ast.AnnAssign(target=target):
                    names = [target]
                case _:
                    continue
            for name in names:
                if isinstance(name, ast.Name) and name.id.isupper():
                    modules[name.id].add(path)
    shared = {name: sorted(paths) for name, paths in modules.items() if len(paths) > 2}
    assert len(shared) <= 5, shared


def test_nothing_is_keyed_by_its_address() -> None:
    calls = [
        f"{path}:{node.lineno}"
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    ]
    assert not calls, calls


LOOSE = re.compile(r"(Mapping|dict|Dict)\[str, Any\]")
"""A type that does not say which keys a mapping has."""


def test_mappings_with_known_keys_have_types() -> None:
    """Those left hold the user's YAML, unchecked JSON, keys of components, or trees of tensors."""
    loose = [
        f"{path}:{number}: {line.strip()}"
        for path in trees()
        for number, line in enumerate((FOLDER / path).read_text().splitlines(), 1)
        if LOOSE.search(line)
    ]
    assert len(loose) <= 140, "\n".join(loose)


def test_the_lists_find_what_they_are_for() -> None:
    assert list(bound_names(ast.parse("def told(its): kept = 1; self.mine = 2"))) == [
        ("told", 1),
        ("its", 1),
        ("kept", 1),
        ("mine", 1),
    ]
    assert FRAGMENT.match("What a run cost.")
    assert not FRAGMENT.match("Return the costs of a run.")
