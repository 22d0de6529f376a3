"""What preparing text, sound and birds holds in memory at full size, beside the mapped arrays.

::

    python -m bench.preparing shakespeare

makes files of the published number of samples in the set's format, with content of no meaning,
prepares them once, and prints the peak of the process's anonymous memory (Linux: RssAnon, which
leaves out the pages of files that are mapped) above what it was before, and the seconds.
"""

from __future__ import annotations

import argparse
import gzip
import io
import tarfile
import tempfile
import threading
import time
import wave
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from bench.data import memory
from fl import registry
from fl.data.prepared import Writer
from fl.errors import Where


def shakespeare(folder: Path) -> None:
    """37 plays of 30 roles that say 110 lines each: 4.6 million characters."""
    line = "The sand remembers what the water wrote"
    names = [f"{a}{b}" for a in "ABCDEF" for b in "ABCDEFG"]
    cues = "".join(f"  {names[k % 30]}. {line}\n" for k in range(30 * 110))
    plays = [f"1600\n\n{name}\n\nby William Shakespeare\n\n{cues}" for name in names[:37]]
    with zipfile.ZipFile(folder / "1994-01-100.zip", "w") as archive:
        archive.writestr("100.txt", "\n\nby William Shakespeare\n\n\n" + "\n".join(plays))


def sent140(folder: Path) -> None:
    """1,600,498 tweets of 13 of 700,000 words, by 660,120 users of unequal diligence."""
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(700_000)]
    share = np.cumsum(1 / (1 + np.arange(660_120)) ** 0.9)
    user = np.searchsorted(share / share[-1], draw.random(1_600_498))
    user[:660_120] = np.arange(660_120)
    files = {"training.1600000.processed.noemoticon.csv": user[:1_600_000]}
    files["testdata.manual.2009.06.14.csv"] = user[1_600_000:]
    with zipfile.ZipFile(folder / "trainingandtestdata.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, writers in files.items():
            with archive.open(name, "w") as file:
                for i, who in enumerate(writers.tolist()):
                    said = (draw.random(13) ** 3 * len(words)).astype(int)
                    text = " ".join(words[word] for word in said)
                    row = f'"{4 * (i % 2)}","{i}","date","NO_QUERY","user{who}","{text}"\n'
                    file.write(row.encode())


def speech_commands(folder: Path) -> None:
    """105,829 recordings of one tone by 2,618 speakers, and a minute of another."""
    words = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go", "tree")
    tone = _wave(16_000)
    names = (
        f"{words[i // 2_618 % 11]}/{i % 2_618:08x}_nohash_{i // 2_618 // 11}.wav"
        for i in range(105_829)
    )
    lists = [(f"{name}_list.txt", b"") for name in ("validation", "testing")]
    noise = [("_background_noise_/noise.wav", _wave(60 * 16_000))]
    _tar(folder / "speech_commands_v0.02.tar.gz", [*lists, *noise, *((n, tone) for n in names)])


def cub200(folder: Path) -> None:
    """11,788 photographs of 500 x 375 pixels, and ten captions of 16 words each."""
    from PIL import Image

    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "JPEG")
    numbers = range(1, 11_789)
    names = [f"{i % 200 + 1:03}.Bird/Bird_{i}.jpg" for i in numbers]
    lists = {
        "classes.txt": "".join(f"{i} {i:03}.Bird\n" for i in range(1, 201)),
        "images.txt": "".join(f"{i} {name}\n" for i, name in zip(numbers, names, strict=True)),
        "image_class_labels.txt": "".join(f"{i} {i % 200 + 1}\n" for i in numbers),
        "train_test_split.txt": "".join(f"{i} {int(i <= 5_994)}\n" for i in numbers),
    }
    members = [(f"CUB_200_2011/{name}", text.encode()) for name, text in lists.items()]
    members += [(f"CUB_200_2011/images/{name}", file.getvalue()) for name in names]
    _tar(folder / "CUB_200_2011.tgz", members)
    captions = [
        (f"text_c10/{name[:-4]}.txt", (f"this is word{i % 4_000} of " * 4 + "\n").encode() * 10)
        for i, name in enumerate(names)
    ]
    _tar(folder / "cvpr2016_cub.tar.gz", captions)


def _wave(samples: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 16_000, samples, "NONE", ""))
        tone = 1_000 * np.sin(np.arange(samples) / 9)
        sound.writeframes(tone.astype("<i2").tobytes())
    return file.getvalue()


def _tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    with gzip.open(path, "wb", 1) as packed, tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


MAKERS: dict[str, Callable[[Path], None]] = {
    "shakespeare": shakespeare,
    "sent140": sent140,
    "speech-commands": speech_commands,
    "cub200": cub200,
}


def peak(work: Callable[[], None]) -> int:
    """By how many bytes anonymous memory rose at most while ``work`` ran; sampled."""
    before, done, top = memory("RssAnon"), threading.Event(), [0]

    def watch() -> None:
        while not done.wait(0.01):
            top[0] = max(top[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        work()
    finally:
        done.set()
        watcher.join()
    return top[0] - before


def measure(name: str, folder: Path) -> tuple[int, float]:
    """Peak in bytes, and seconds, of preparing the files in ``folder``."""
    entry = registry.find("data set", name, Where("--name"))
    dataset = entry.make(entry.parse({"complete": False}, Where("bench")))
    begun = time.perf_counter()
    with Writer(folder / "prepared") as writer:
        return peak(lambda: dataset.read(folder, writer)), time.perf_counter() - begun


def main() -> None:
    """Make the files in another process, so that it leaves no memory behind, and prepare them."""
    import multiprocessing

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=sorted(MAKERS))
    name = parser.parse_args().name
    with tempfile.TemporaryDirectory() as folder:
        maker = multiprocessing.get_context("spawn").Process(
            target=MAKERS[name], args=(Path(folder),)
        )
        maker.start()
        maker.join()
        highest, seconds = measure(name, Path(folder))
    print(f"{name}: {highest / 1e6:.0f} MB at most, {seconds:.0f} s")


if __name__ == "__main__":
    main()
