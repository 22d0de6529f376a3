"""Files in formats that single data sets come in: volumes, workbooks, sound."""

from __future__ import annotations

import gzip
import io
import math
import struct
import wave
import zipfile

import numpy as np
import pytest
import torch
from sources.prostate_mri import nifti as volume_file

from fl.base.errors import DataError
from fl.data.datasets.prostate_mri import read_volume
from fl.data.datasets.retina import read_sheet
from fl.data.datasets.speech_commands import RATE, log_mel, read_wav


def named(content, name):
    stream = io.BytesIO(content)
    stream.name = name
    return stream


# Volumes


def volume(content):
    return read_volume(named(content, "scan.nii"))


def ramp(dtype):
    return np.arange(2 * 3 * 4).reshape(2, 3, 4).astype(dtype)


@pytest.mark.parametrize("dtype", ["u1", "i2", "f8"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_plain_volumes_come_out_as_they_are(dtype, order):
    read = volume(volume_file(ramp(dtype), order=order))
    assert read.dtype == np.dtype(dtype)
    assert np.array_equal(read, ramp(dtype))


def test_scaling_of_the_header_is_applied():
    read = volume(volume_file(ramp("i2"), slope=0.5, intercept=3.0))
    assert read.dtype == np.float64
    assert np.array_equal(read, ramp("i2") * 0.5 + 3)
    for none in (0.0, float("nan")):
        whole = volume_file(ramp("i2"), slope=none, intercept=3.0)
        assert np.array_equal(volume(whole), ramp("i2"))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: b"",
        lambda c: c[:70] + struct.pack("<h", 77) + c[72:],
        lambda c: c[:108] + struct.pack("<f", float("nan")) + c[112:],
        lambda c: c[:112] + struct.pack("<2f", 2, float("inf")) + c[120:],
        lambda c: c[:40] + struct.pack("<4h", 3, 32767, 32767, 32767) + c[48:],
        lambda c: c[:40] + struct.pack("<4h", 3, -4, 3, 2) + c[48:],
        lambda c: c[:-1],
        lambda c: gzip.compress(c)[:-9],
    ],
)
def test_other_files_are_no_volumes(change):
    with pytest.raises(DataError, match=r"^scan\.nii: is no NIfTI-1 volume"):
        volume(change(volume_file(ramp("i2"))))


# Workbooks

SPACE = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'


def sheet(rows, shared=None):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        book.writestr("xl/worksheets/sheet1.xml", f"<worksheet {SPACE}>{rows}</worksheet>")
        if shared:
            book.writestr("xl/sharedStrings.xml", f"<sst {SPACE}>{shared}</sst>")
    return read_sheet(named(out.getvalue(), "book.xlsx"))


def test_cells_are_texts_by_column():
    shared = "<si><t>name</t></si><si><r><t>gl</t></r><r><t>aucoma</t></r></si>"
    rows = (
        '<sheetData><row r="2"><c r="B2" t="s"><v>0</v></c><c r="AA2"><v>1.5</v></c></row>'
        '<row r="3"/><row r="4"><c r="B4" t="s"><v>1</v></c>'
        '<c r="C4" t="inlineStr"><is><t>here</t></is></c><c r="D4"/></row></sheetData>'
    )
    expected = [{"B": "name", "AA": "1.5"}, {}, {"B": "glaucoma", "C": "here", "D": ""}]
    assert sheet(rows, shared) == expected
    assert sheet('<row r="1"><c r="A1"><v>7</v></c></row>') == [{"A": "7"}], "no shared strings"


def test_other_files_are_no_workbooks():
    for content in (b"", b"a,b\n1,2\n", b"PK\3\4"):
        with pytest.raises(DataError, match=r"^book\.xlsx: is no readable Excel workbook"):
            read_sheet(named(content, "book.xlsx"))
    with pytest.raises(DataError, match=r"^book\.xlsx: is no readable Excel workbook"):
        sheet('<row r="1"><c r="A1" t="s"><v>5</v></c></row>', "<si><t>a</t></si>")


# Sound

SIGNAL = np.random.default_rng(3).uniform(-1, 1, RATE) * np.hanning(RATE)


def mel(hertz):
    return 2595 * math.log10(1 + hertz / 700)


def hertz(mel):
    return 700 * (10 ** (mel / 2595) - 1)


def test_features_are_those_of_torch_stft():
    # torch puts the window of 400 in the middle of 512, so 56 zeros stand before the signal.
    padded = torch.nn.functional.pad(torch.from_numpy(SIGNAL), (56, 56))
    window = torch.hann_window(400, dtype=torch.float64)
    spectrum = torch.stft(padded, 512, 160, 400, window, center=False, return_complex=True)
    edges = [hertz(mel(8_000) * i / 41) for i in range(42)]
    at = np.arange(257) * 31.25
    bank = np.stack([np.interp(at, edges[m : m + 3], [0, 1, 0]) for m in range(40)])
    expected = np.log(1e-6 + bank @ spectrum.abs().square().numpy())
    np.testing.assert_allclose(log_mel(SIGNAL), expected, rtol=0, atol=2e-6)


def wav(samples=b"\1\0\2\0", rate=16_000):
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setframerate(rate)
        out.setnchannels(1)
        out.setsampwidth(2)
        out.writeframes(samples)
    return file.getvalue()


def test_wave_files_are_read_to_the_sample():
    samples = np.array([-32_768, 0, 1, 32_767], "<i2")
    read = read_wav(io.BytesIO(wav(samples.tobytes())))
    assert (read.dtype, read.tolist()) == (np.int16, samples.tolist())


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (wav(rate=8_000), "a.wav: is of 8000 Hz, 1 channel(s), 16 bit. Allowed: 16000 Hz"),
        (wav(b"\0" * 100)[:-50], "a.wav: is cut off after 25 of 50 samples"),
        (wav()[:16] + b"\0\0\0\x7f" + wav()[20:], "a.wav: is no WAVE file"),
        (b"not sound at all", "a.wav: is no WAVE file"),
    ],
)
def test_what_is_no_such_wave_file_is_named(content, told):
    with pytest.raises(DataError) as error:
        read_wav(named(content, "a.wav"))
    assert str(error.value).startswith(told)
