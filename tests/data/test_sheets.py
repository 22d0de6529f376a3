from __future__ import annotations

import io
import zipfile

import pytest

from fl.base.errors import DataError
from fl.data import sheets

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def rows(sheet, shared=None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        book.writestr("xl/worksheets/sheet1.xml", f"<worksheet {SPACE}>{sheet}</worksheet>")
        if shared:
            book.writestr("xl/sharedStrings.xml", f"<sst {SPACE}>{shared}</sst>")
    stream = io.BytesIO(out.getvalue())
    stream.name = "book.xlsx"
    return sheets.rows(stream)


def test_cells_are_texts_by_column():
    shared = "<si><t>name</t></si><si><r><t>gl</t></r><r><t>aucoma</t></r></si>"
    sheet = (
        '<sheetData><row r="2"><c r="B2" t="s"><v>0</v></c><c r="AA2"><v>1.5</v></c></row>'
        '<row r="3"/><row r="4"><c r="B4" t="s"><v>1</v></c>'
        '<c r="C4" t="inlineStr"><is><t>here</t></is></c><c r="D4"/></row></sheetData>'
    )
    expected = [{"B": "name", "AA": "1.5"}, {}, {"B": "glaucoma", "C": "here", "D": ""}]
    assert rows(sheet, shared) == expected


def test_book_without_shared_strings():
    assert rows('<sheetData><row r="1"><c r="A1"><v>7</v></c></row></sheetData>') == [{"A": "7"}]


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"PK\3\4"])
def test_other_files_are_refused_by_name(content):
    stream = io.BytesIO(content)
    stream.name = "labels.xlsx"
    with pytest.raises(DataError, match=r"^labels\.xlsx: is no readable Excel workbook"):
        sheets.rows(stream)


def test_reference_to_a_string_that_is_missing():
    with pytest.raises(DataError, match=r"^book\.xlsx: is no readable Excel workbook"):
        rows('<row r="1"><c r="A1" t="s"><v>5</v></c></row>', "<si><t>a</t></si>")
