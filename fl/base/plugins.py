"""Plugins: the user's own code outside this repository, with the same rights as code inside it.

``plugins: [../mylab]`` in ``config.yaml`` names a Python package: a folder with ``methods/``,
``terms/``, ``alterations/``, ``filters/``, ``aggregations/``, ``models/``, ``datasets/``,
``schemes/`` and ``analyses/`` as in ``fl``, and other files that these import. The registry finds
them. They are checked, are part of the identity of runs, and can be tested by the contract tests.

Exceptions become one line of text here; for code of a plugin, with file and line.

A run's name holds the package of its plugin. So a module beside it is refused, since an edit of it
would rename nothing; and a file that the code opens counts by its content, if the code names it.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from fl.base.errors import ConfigError, FedloomError, Location
from fl.base.files import is_file, is_folder

FL = Path(__file__).resolve().parents[1]
SNAPSHOT = FL.parent / "snapshot.json"
"""This file exists if the code is a copy for jobs; copies of the plugins then lie beside it."""

_roots: dict[str, Path] = {FL.name: FL}


def use(folders: Iterable[str], location: Location) -> None:
    """Make the packages in these folders importable in this process.

    Raises:
        ConfigError: If a folder does not exist, its name is not a Python name, or another package
            has its name.
    """
    for i, text in enumerate(folders):
        item_location = location / i
        try:
            folder = Path(text).resolve(strict=True)
        except (OSError, ValueError, RuntimeError):
            folder = Path(text)
        if SNAPSHOT.is_file():
            folder = SNAPSHOT.with_name(folder.name)
        if "\0" in text or not is_folder(folder):
            problem = f"{text!r} is not a folder"
            raise ConfigError(item_location, problem, "the folder of a Python package")
        if not folder.name.isidentifier():
            problem = f"{folder.name!r} is not a name that Python can import"
            raise ConfigError(item_location, problem)
        if _roots.setdefault(folder.name, folder) != folder:
            problem = f"{folder} has the same name as {_roots[folder.name]}"
            raise ConfigError(item_location, problem, "packages with different names")
        if str(folder.parent) not in sys.path:
            sys.path.append(str(folder.parent))
        spec = importlib.util.find_spec(folder.name)
        if spec is None or str(folder) not in (spec.submodule_search_locations or ()):
            problem = f"{folder.name!r} is the name of a package that Python already has"
            raise ConfigError(item_location, problem, advice="rename the folder")


def roots() -> dict[str, Path]:
    """Return the packages whose code decides numbers, by name: ``fl`` first, then plugins."""
    return dict(_roots)


LONGEST_TEXT = 600
"""Length from which the text of an error is shortened, in characters."""

VMAP_MESSAGE = "vmap: It looks like you're"
"""First words of PyTorch's message if a tensor in a stack is converted to a Python number."""
DEBUGGER_ADVICE = "a debugger needs `arithmetic: native`, which trains in the process of the call"
STACK_ADVICE = "this is impossible in a stack of clients; try `execution: {backend: loop}`"


def describe(error: BaseException) -> str:
    """Return an exception in one line: ``lab/methods/mine.py, line 30: KeyError: 'x'``.

    File and line are given for code of plugins only; the innermost one counts. Of a long text, such
    as the command of a compiler and what it printed, the lines that name an error are given.
    """
    text = f"{type(error).__name__}: {_shortened(str(error))}"
    if str(error).startswith(VMAP_MESSAGE):
        text = f"{text.rstrip('.')}; {STACK_ADVICE}"
    if type(error).__name__ == "BdbQuit":
        text = f"BdbQuit: {DEBUGGER_ADVICE}"
    line = plugin_line(error)
    return f"{line}: {text}" if line else text


def _shortened(text: str) -> str:
    """Return a text in one line; of a long one, short lines with errors, or both ends."""
    line = " ".join(text.split())
    if len(line) <= LONGEST_TEXT:
        return line
    lines = (" ".join(part.split()) for part in text.splitlines())
    errors = [part for part in lines if "error" in part.lower() and len(part) < LONGEST_TEXT // 2]
    if errors:
        return "; ".join(errors[:4])
    return f"{line[: LONGEST_TEXT // 2]} ... {line[-LONGEST_TEXT // 2 :]}"


def plugin_line(error: BaseException) -> str:
    """Return the line of a plugin that raised an error, ``lab/a.py, line 30``; empty if none."""
    folders = [f"{root}{os.sep}" for root in roots().values() if root != FL]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(tuple(folders)):
            return f"{os.path.relpath(frame.filename)}, line {frame.lineno}"
    return ""


READERS = {
    *("open", "io.open", "os.open", "runpy.run_path", "sqlite3.connect", "h5py.File"),
    *("numpy.load", "numpy.loadtxt", "numpy.genfromtxt", "numpy.fromfile", "numpy.memmap"),
    *("torch.load", "torch.jit.load", "joblib.load", "scipy.io.loadmat", "PIL.Image.open"),
    *("safetensors.safe_open", "safetensors.torch.load_file", "safetensors.numpy.load_file"),
    *("gzip.open", "bz2.open", "lzma.open", "zipfile.ZipFile", "tarfile.open"),
    *("torchvision.io.read_image", "pyarrow.parquet.read_table"),
    *("linecache.getline", "linecache.getlines", "fileinput.input", "pkgutil.get_data"),
    *("configparser.ConfigParser", "configparser.RawConfigParser"),
    *("importlib.util.spec_from_file_location", "os.path.getsize", "os.path.getmtime"),
    *("numpy.fromregex", "torch.from_file", "xml.etree.ElementTree.parse"),
}
"""Functions that open a file; those of pandas begin with ``read_``."""
UNKNOWN_SOURCES = {
    "the environment": ("os.environ", "os.environb", "os.getenv", "os.getenvb"),
    "the output of a program": ("subprocess", "os.popen", "os.system"),
    "the names of files": ("os.listdir", "os.scandir", "os.walk", "os.fwalk", "glob"),
    "the network": ("urllib.request", "requests", "http.client", "torch.hub"),
}
"""What no run's name can hold, with the functions and modules that read it."""
CHANGING_SOURCES = {
    "the clock": (
        *("time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime"),
        *("time.strftime", "datetime.datetime.now", "datetime.datetime.today"),
        *("datetime.datetime.utcnow", "datetime.date.today"),
    ),
    "the process or the machine": ("os.getpid", "os.uname", "platform", "socket"),
}
"""What differs from call to call; a method may measure its time, but a model has no reason to."""
LISTING_METHODS = ("iterdir", "glob", "rglob")
"""Methods of a path that list files."""
CHANGING_METHODS = ("setdefault", "update", "pop", "clear")
"""Methods that set the environment; their results are mostly not read."""
MODULES_OF_READERS = ("os", "io", "builtins", "subprocess")
"""Modules of which ``getattr`` must name what it takes."""
WRITING_MODE = re.compile(r"[wax][bt+]{0,2}")
"""A mode of ``open`` that writes."""
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
        if name not in roots() and _own_module(name):
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
    return {*_imported_packages(_parse(file))} & (roots().keys() - {FL.name})


def opened_files(file: Path, package: Path, is_of_model: bool = False) -> dict[str, Path]:
    """Return the files that a file of a plugin names, if it opens files.

    Args:
        file: The file.
        package: The folder of the plugin. A path in the code is below it, below the folder of the
            file, or below the working directory.
        is_of_model: Whether a model uses the file, which may not read what changes by itself.

    Returns:
        The paths by their text in the code.

    Raises:
        FedloomError: If the code opens a file and names none that exists, or reads what no name of
            a run can hold, such as the environment.
    """
    tree = _parse(file)
    sources = {**UNKNOWN_SOURCES, **CHANGING_SOURCES} if is_of_model else UNKNOWN_SOURCES
    for source, line in _reading_lines(tree, sources):
        raise FedloomError(
            f"{file}: line {line} reads {source}, which no run's name holds",
            advice="pass the value as a key, or open a file whose path is a text in the code",
        )
    lines = [*_opening_lines(tree)]
    if not lines:
        return {}
    path_by_text: dict[str, Path] = {}
    for text in _path_texts(tree):
        for folder in (*[p for p in file.parents if p.is_relative_to(package)], Path.cwd()):
            path = folder / Path(text).expanduser()
            if is_file(path):
                path_by_text.setdefault(text, path)
    if not path_by_text:
        raise FedloomError(
            f"{file}: line {lines[0]} opens a file, and no text in the code is the path of an"
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
    if package in sys.stdlib_module_names or package == FL.name:
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
    if isinstance(node, ast.Call) and (name := _attribute(node)):
        module = _dotted(node.args[0], aliases)
        return name if module in ("builtins", "__builtins__") else module and f"{module}.{name}"
    if isinstance(node, ast.Attribute) and (name := _dotted(node.value, aliases)):
        return node.attr if name in ("builtins", "__builtins__") else f"{name}.{node.attr}"
    return ""


def _attribute(node: ast.AST) -> str:
    """Return the attribute that an expression takes, by a dot or by ``getattr``, or ""."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
        name = node.args[1]
        if node.func.id == "getattr" and isinstance(name, ast.Constant):
            return str(name.value)
    return node.attr if isinstance(node, ast.Attribute) else ""


def _reading_lines(
    tree: ast.Module, sources: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[str, int]]:
    """Yield what a file reads of some sources, and lists of files: source, reader and line."""
    aliases, imported = _aliases(tree), {*_imported_packages(tree)}
    written = {*_written_environments(tree)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.expr) or node in written:
            continue
        name = _dotted(node, aliases)
        # A module alone reads nothing.
        is_used = not isinstance(node, ast.Name) or name != node.id
        if is_used and name.partition(".")[0] in imported:
            for source, readers in sources.items():
                if any(f"{name}.".startswith(f"{reader}.") for reader in readers):
                    yield f"{source} ({name})", node.lineno
        if isinstance(node, ast.Call):
            first = _dotted(node.args[0], aliases) if node.args else ""
            if (method := _attribute(node.func)) in LISTING_METHODS:
                yield f"the names of files ({method})", node.lineno
            is_getattr = _dotted(node.func, aliases) == "getattr" and not _attribute(node)
            if is_getattr and first in MODULES_OF_READERS:
                yield f"what getattr takes of {first}", node.lineno


def _written_environments(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield ``os.environ`` where a file only sets it: ``os.environ["A"] = "1"``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield node.value
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function = node.value.func
            if isinstance(function, ast.Attribute) and function.attr in CHANGING_METHODS:
                yield from (function, function.value)


def _opening_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the line of each call that opens a file, but for writing.

    A function that opens files and is not called but given on, as in ``map(open, paths)``, counts.
    """
    aliases = _aliases(tree)
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    assigned = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    assigned |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and node not in called:
            name = _dotted(node, aliases)
            if _is_reader(name) and name not in assigned:
                yield node.lineno
        if isinstance(node, ast.Call):
            name, attribute = _dotted(node.func, aliases), _attribute(node.func)
            opens_path = attribute == "open" and name not in READERS
            is_opening = _is_reader(name) or opens_path or attribute in PATH_READERS
            if is_opening and not _is_writing(node, name, opens_path):
                yield node.lineno


def _is_reader(name: str) -> bool:
    """Whether a function of this full name opens a file."""
    return name in READERS or name.startswith("pandas.read_")


def _is_writing(call: ast.Call, name: str, opens_path: bool) -> bool:
    """Whether a call names a mode that writes, such as ``w`` or ``ab``.

    Args:
        call: The call.
        name: Full name of its function.
        opens_path: Whether it is a method ``open``, whose mode can be its first argument.
    """
    modes = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    if opens_path:
        modes += call.args[:2]
    elif name.endswith(("open", "File")):
        modes += call.args[1:2]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant)]
    return any(isinstance(text, str) and WRITING_MODE.fullmatch(text) for text in texts)


def _path_texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a file that may be paths, and the texts that it joins to a path.

    ``HERE / "a" / "b.csv"`` and ``join(HERE, "a", "b.csv")`` give ``a/b.csv``.
    """
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
