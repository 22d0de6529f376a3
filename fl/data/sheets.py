"""The cells of an Excel workbook's first sheet: some data sets keep their labels in one.

ECMA-376, Office Open XML File Formats: a workbook is a zip of XML files, and text cells refer to a
table of strings that all sheets share.
"""

from __future__ import annotations

import io
import zipfile
from typing import BinaryIO
from xml.etree import ElementTree

from fl.base.errors import reading
from fl.data.archives import name_of

SPACE = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
SHEET, STRINGS = "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"


def rows(stream: BinaryIO) -> list[dict[str, str]]:
    """The rows that have cells, in order: the text of each cell by its column's letters.

    Raises:
        DataError: For a file that is no workbook; it names the file.
    """
    with reading(name_of(stream), "is no readable Excel workbook"):
        with zipfile.ZipFile(io.BytesIO(stream.read())) as book:
            sheet = ElementTree.fromstring(book.read(SHEET))
            shared = book.read(STRINGS) if STRINGS in book.namelist() else b"<none/>"
        strings = [_text(item) for item in ElementTree.fromstring(shared)]
        return [
            {_column(cell): _content(cell, strings) for cell in row.iter(f"{SPACE}c")}
            for row in sheet.iter(f"{SPACE}row")
        ]


def _column(cell: ElementTree.Element) -> str:
    return cell.get("r", "").rstrip("0123456789")


def _content(cell: ElementTree.Element, strings: list[str]) -> str:
    if cell.get("t") == "inlineStr":
        return _text(cell)
    value = cell.findtext(f"{SPACE}v", "")
    return strings[int(value)] if cell.get("t") == "s" else value


def _text(element: ElementTree.Element) -> str:
    return "".join(part.text or "" for part in element.iter(f"{SPACE}t"))
