"""What a plugin's code needs besides its package: modules that it imports, files that it opens.

A run's name holds the package of its plugin. So a module beside it is refused, since an edit of it
would rename nothing; and a file that the code opens counts by its content, if the code names it.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fl.base import plugins
from fl.base.errors import FedloomError
from fl.base.files import is_file

READERS = {
    *("open", "io.open", "os.open", "runpy.run_path", "sqlite3.connect", "h5py.File"),
    *("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap"),
    *("torch.load", "torch.jit.load", "joblib.load", "scipy.io.loadmat", "PIL.Image.open"),
    *("safetensors.safe_open", "safetensors.torch.load_file", "safetensors.numpy.load_file"),
    *("gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open"),
    *("torchvision.io.read_image", "pyarrow.parquet.read_table"),
}
"""Functions that open a file; those of pandas begin with ``read_``."""
PATH_READERS = ("read_text", "read_bytes")
IMPORTERS = ("importlib.import_module", "__import__")


def check_imports(file: Path, package: Path) -> None:
    """Raise a `FedloomError` if a file of a plugin imports a module that no run's name holds.

    Args:
        file: The file.
        package: The folder of the plugin.
    """
    tree = _parse(file)
    for name in _imported_packages(tree):
        if name not in plugins.roots() and _own_module(name):
            raise FedloomError(
                f"{file}: imports {name}, which is outside of the plugin, so that an edit of it"
                " would rename no run",
                advice=f"move it to {package}, and write `from {package.name} import {name}`",
            )
    aliases = _aliases(tree)
    if any(_dotted(node, aliases) == "sys.path" for node in ast.walk(tree)):
        raise FedloomError(
            f"{file}: uses sys.path, so that what it imports cannot be known",
            advice=f"move what it imports to {package}, and leave out sys.path",
        )


def imported_plugins(file: Path) -> set[str]:
    """Return the names of the plugins from which a file imports."""
    return {*_imported_packages(_parse(file))} & (plugins.roots().keys() - {plugins.FL.name})


def opened_files(file: Path, package: Path) -> dict[str, Path]:
    """Return the files that a file of a plugin names, if it opens files.

    Args:
        file: The file.
        package: The folder of the plugin. A path in the code is below it, below the folder of the
            file, or below the working directory.

    Returns:
        The paths by their text in the code.

    Raises:
        FedloomError: If the code opens a file and names none that exists.
    """
    tree = _parse(file)
    readers = [*_readers(tree)]
    if not readers:
        return {}
    path_by_text: dict[str, Path] = {}
    for text in _path_texts(tree):
        for folder in (*[p for p in file.parents if p.is_relative_to(package)], Path.cwd()):
            path = folder / Path(text).expanduser()
            if is_file(path):
                path_by_text.setdefault(text, path)
    if not path_by_text:
        raise FedloomError(
            f"{file}: line {readers[0]} opens a file, and no text in the code is the path of an"
            " existing one, so that an edit of it would rename no run",
            advice="write the path as a text in the code, or pass the values as keys",
        )
    return path_by_text


def _parse(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError:
        return ast.Module([], [])  # Whoever imports the file shows the error.


def _imported_packages(tree: ast.Module) -> Iterator[str]:
    """Yield the first part of the name of each module that a file imports from outside."""
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        names: list[object] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        elif isinstance(node, ast.Call) and _dotted(node.func, aliases) in IMPORTERS:
            names = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        yield from (name.partition(".")[0] for name in names if isinstance(name, str))


def _own_module(name: str) -> bool:
    """Whether a module exists and is a file of the user."""
    try:
        exists = importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        exists = False
    return exists and not is_installed(name)


@cache
def is_installed(package: str) -> bool:
    """Whether a package is Fedloom's, Python's or installed, and not a file of the user."""
    if package in sys.stdlib_module_names or package == plugins.FL.name:
        return package != "__main__"
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return False
    paths = [*(spec.submodule_search_locations or ()), spec.origin or ""] if spec else []
    roots = {Path(sysconfig.get_path(key)).resolve() for key in ("purelib", "platlib")}
    return any(
        {"site-packages", "dist-packages"} & {*Path(path).parts}
        or not roots.isdisjoint(Path(path).resolve().parents)
        for path in paths
    )


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return the full names of what a file imports, by the name in the file."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return aliases


def _dotted(node: ast.AST, aliases: dict[str, str]) -> str:
    """Return the full name of a function, such as ``numpy.load`` for ``np.load``, or ""."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute) and (name := _dotted(node.value, aliases)):
        return f"{name}.{node.attr}"
    return ""


def _readers(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each call that opens a file, but for writing."""
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, attribute = _dotted(node.func, aliases), getattr(node.func, "attr", "")
        is_path_method = attribute in PATH_READERS or (attribute == "open" and name not in READERS)
        place = 0 if is_path_method else 1
        modes = (
            node.args[place : place + 1] if name.endswith(("open", "File")) or place == 0 else []
        )
        modes += [keyword.value for keyword in node.keywords if keyword.arg == "mode"]
        texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
        is_written = any(isinstance(text, str) and text[:1] in ("w", "a", "x") for text in texts)
        if (
            name in READERS or name.startswith("pandas.read_") or is_path_method
        ) and not is_written:
            yield node.lineno


def _path_texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a file that may be paths, and the texts that it joins to a path."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            pieces: list[ast.expr] = [node]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            pieces = [inner for inner in ast.walk(node) if isinstance(inner, ast.Constant)]
            pieces.sort(key=lambda inner: (inner.lineno, inner.col_offset))
        else:
            pieces = node.args if isinstance(node, ast.Call) else []
        texts = [piece.value for piece in pieces if isinstance(piece, ast.Constant)]
        text = "/".join(text for text in texts if isinstance(text, str))
        if text and len(text) < 1000 and "\n" not in text and "\0" not in text:
            yield text
