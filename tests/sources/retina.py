"""Drishti-GS1, ACRIMA, RIM-ONE DL and REFUGE's training images, as many as the real ones have.

Format: of Drishti, the tree ``Drishti-GS1_files/Drishti-GS1_files/{Training,Test}/Images`` and the
sheet ``Drishti-GS1_diagnosis.xlsx``, whose fourth row names the columns, whose files end with a
mark ("drishtiGS_001'") and whose column ``Total`` has the verdict: public readers with pandas
(skiprows=3) and xlrd. ACRIMA: the data set's description (names end with ``_g_ACRIMA`` or
``_ACRIMA``, two files with ``.JPG``). RIM-ONE DL: its README and public readers of its two
variants. REFUGE: public readers of ``Training400/{Glaucoma,Non-Glaucoma}``.
"""

from __future__ import annotations

import io
import zipfile
from html import escape
from pathlib import Path

import numpy as np

from sources import Made
from sources.packing import encoded, pack, picture, seen

PARAMS: dict[str, object] = {}
BROKEN = {
    "missing class folder": (
        {"without": "Training400/Glaucoma/"},
        r"REFUGE-Training400\.zip: lacks the images of glaucoma eyes",
    ),
    "missing diagnosis": ({"unknown": 7}, r"Drishti-GS1_diagnosis\.xlsx has no .* drishtiGS_007"),
}
DRISHTI = "Drishti-GS1_files/Drishti-GS1_files"
RIM = "RIM-ONE_DL_images/partitioned_randomly"


def drishti() -> dict[str, int]:
    """Label by path: 18 + 32 to train with, 13 + 38 to test with, normal and glaucoma."""
    parts = ["Training"] * 50 + ["Test"] * 51
    labels = [0] * 18 + [1] * 32 + [0] * 13 + [1] * 38
    return {
        f"{DRISHTI}/{part}/Images/drishtiGS_{i:03}.png": y
        for i, (part, y) in enumerate(zip(parts, labels, strict=True), 1)
    }


def acrima() -> dict[str, int]:
    """Label by path."""
    found = {}
    for i in range(1, 706):
        y, ending = int(i > 309), "JPG" if i in (702, 703) else "jpg"
        found[f"Database/Images/Im{i:03}{'_g' * y}_ACRIMA.{ending}"] = y
    return found


def rim() -> dict[str, int]:
    """Label by path, of the variant that is divided at random."""
    sizes = {("training_set", 0): 219, ("training_set", 1): 120}
    sizes |= {("test_set", 0): 94, ("test_set", 1): 52}
    return {
        f"{RIM}/{part}/{('normal', 'glaucoma')[y]}/r{1 + i % 3}_Im{i:03}.png": y
        for (part, y), n in sizes.items()
        for i in range(n)
    }


def refuge() -> dict[str, int]:
    """Label by path."""
    sick = {f"Training400/Glaucoma/g{i:04}.jpg": 1 for i in range(1, 41)}
    return sick | {f"Training400/Non-Glaucoma/n{i:04}.jpg": 0 for i in range(1, 361)}


def write(folder: Path, unknown: int = 0, share: int = 1, **broken: object) -> Made:
    sites = drishti(), acrima(), rim(), refuge()
    labels = [dict(sorted(images.items())[::share]) for images in sites]
    packs = [{name: photograph(name) for name in images} for images in labels]
    told = {name: y for name, y in labels[0].items() if not name.endswith(f"{unknown:03}.png")}
    sheet = {"Drishti-GS1_files/Drishti-GS1_diagnosis.xlsx": workbook(told)}
    masks = {f"{DRISHTI}/Training/GT/drishtiGS_001/SoftMap/drishtiGS_001_ODsegSoftmap.png": b"?"}
    notes = {"__MACOSX/Database/Images/._Im001_ACRIMA.jpg": b"a Mac's note"}
    other = dict.fromkeys((name.replace("randomly", "by_hospital") for name in labels[2]), b"?")
    pack(folder / "Drishti-GS1_files.zip", packs[0] | sheet | masks, **broken)
    pack(folder / "acrima.zip", packs[1] | notes, **broken)
    pack(folder / "RIM-ONE_DL_images.zip", other | packs[2], **broken)
    pack(folder / "REFUGE-Training400.zip", packs[3], **broken)
    names = [name for images in labels for name in images]
    content = [photo for pack in packs for photo in pack.values()]
    domain = np.repeat(np.arange(4), [len(images) for images in labels])
    rows = (0, 50, 51, 101, 803, 900, 1000, 1300, 1690) if share == 1 else ()
    return Made(
        samples=len(names),
        shape=(3, 96, 96),
        classes=("normal", "glaucoma"),
        y=np.array([y for images in labels for y in images.values()]),
        x={row: seen(content[row], 96, 96) for row in rows},
        domains=("Drishti", "Acrima", "Rim", "Refuge"),
        domain=domain,
        client=domain,
        split=np.array(["/Test/" in name or "/test_set/" in name for name in names], int),
    )


def photograph(name: str) -> bytes:
    return encoded(picture(name, 14, 12), "PNG" if name.endswith(".png") else "JPEG")


def workbook(labels: dict[str, int]) -> bytes:
    """The sheet: a title, the names of the columns in row 4, two experts' verdicts, their total."""
    words = ("Normal", "Glaucomatous")
    rows = [["", "Drishti-GS1: diagnosis"], [], []]
    rows += [["", "Drishti-GS File", "Expert-1", "Expert-2", "Total"], []]
    for name, y in labels.items():
        rows.append(["", f"{Path(name).stem}'", words[1 - y], words[y], words[y]])
    texts = sorted({cell for row in rows for cell in row if cell})
    lines = []
    for r, row in enumerate(rows, 1):
        cells = [
            f'<c r="{chr(65 + c)}{r}" t="s"><v>{texts.index(cell)}</v></c>'
            for c, cell in enumerate(row)
            if cell
        ]
        lines.append(f'<row r="{r}">{"".join(cells)}</row>')
    shared = "".join(f"<si><t>{escape(text)}</t></si>" for text in texts)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        for name, content in BOOK.items():
            book.writestr(name, content)
        book.writestr("xl/sharedStrings.xml", f"<sst {MAIN}>{shared}</sst>")
        sheet = f"<worksheet {MAIN}><sheetData>{''.join(lines)}</sheetData></worksheet>"
        book.writestr("xl/worksheets/sheet1.xml", sheet)
    return out.getvalue()


OFFICE = "http://schemas.openxmlformats.org"
MAIN = f'xmlns="{OFFICE}/spreadsheetml/2006/main"'
KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"
RELATIONS = f'xmlns="{OFFICE}/package/2006/relationships"'
TYPE = f"{OFFICE}/officeDocument/2006/relationships"
BOOK = {
    "[Content_Types].xml": f'<Types xmlns="{OFFICE}/package/2006/content-types">'
    '<Default Extension="rels"'
    ' ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{KIND}.sheet.main+xml"/>'
    f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{KIND}.worksheet+xml"/>'
    f'<Override PartName="/xl/sharedStrings.xml" ContentType="{KIND}.sharedStrings+xml"/></Types>',
    "_rels/.rels": f"<Relationships {RELATIONS}>"
    f'<Relationship Id="a" Type="{TYPE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook {MAIN} xmlns:r="{TYPE}">'
    '<sheets><sheet name="Sheet1" sheetId="1" r:id="a"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f"<Relationships {RELATIONS}>"
    f'<Relationship Id="a" Type="{TYPE}/worksheet" Target="worksheets/sheet1.xml"/>'
    f'<Relationship Id="b" Type="{TYPE}/sharedStrings" Target="sharedStrings.xml"/>'
    "</Relationships>",
}
"""The parts that are the same in all workbooks: which files there are, and what they are."""
