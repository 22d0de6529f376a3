"""Preparing, opening and gathering real data: ``python -m bench.data``.

CIFAR-10 is measured at its full size, on an archive in its own format with random pixels (which
compress about as badly as photographs). Preparing is everything from the archive in a folder of the
user's own to the finished arrays, checksums included, in a process of its own. Memory is that
process's largest: all of it, without the pages of files that the system can drop, and of that what
preparing added. The other sets are prepared from generated files, of two sizes where what is held
does not follow from the size; text, sound and birds from files of as many samples as published,
whose content has no meaning. Batches are gathered from pages that the system holds already, from
the map and from memory in turn; the shortest time of each counts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "data"))

import sources  # noqa: E402
from sources.packing import encoded, tarred  # noqa: E402
from sources.speech_commands import wav  # noqa: E402

from bench.asked import one_of  # noqa: E402
from fl import data  # noqa: E402
from fl.base import registry  # noqa: E402
from fl.base.errors import Where  # noqa: E402
from fl.data import Supply  # noqa: E402
from fl.data.prepared import Prepared  # noqa: E402

BATCH, BATCHES = 64, 200
SIZES: dict[str, list[dict[str, int]]] = {
    "cifar10": [{"size": 10_000}],
    "cifar100": [{"train": 50_000, "test": 10_000}],
    "mnist": [{"train": 60_000, "test": 10_000}],
    "fashion-mnist": [{"train": 60_000, "test": 10_000}],
    "ag-news": [{}],
    "har": [{}],
    "har-signals": [{}],
    "cifar10-c": [{"images": 200}, {"images": 1000}],
    "cinic10": [{"each": 50}, {"each": 250}],
    "tiny-imagenet": [{"each": 5}, {"each": 25}],
    "femnist": [{"each": 100}, {"each": 500}],
    "digits-five": [{"whole": True}],
    "office-caltech10": [{}],
    "domainnet": [{}],
    "retina": [{}],
    "fed-isic2019": [{"side": 1024}],
    "rxrx1": [{"runs": 1743}],
    "prostate-mri": [{"slices": 24}],
    "abide": [{}],
}
"""What each generator is asked for. At their published sizes: CIFAR, both MNISTs, DIGITS, Office,
RETINA, ABIDE, the pictures of RxRx1's archive and of ISIC 2019, prostate volumes."""


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
    tone, minute = (
        wav((1_000 * np.sin(np.arange(n) / 9)).astype("<i2")) for n in (16_000, 960_000)
    )
    names = (
        f"{words[i // 2_618 % 11]}/{i % 2_618:08x}_nohash_{i // 2_618 // 11}.wav"
        for i in range(105_829)
    )
    lists = [(f"{name}_list.txt", b"") for name in ("validation", "testing")]
    noise = [("_background_noise_/noise.wav", minute)]
    tarred(folder / "speech_commands_v0.02.tar.gz", [*lists, *noise, *((n, tone) for n in names)])


def cub200(folder: Path) -> None:
    """11,788 photographs of 500 x 375 pixels, and ten captions of 16 words each."""
    pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
    photograph = encoded(pixels, "JPEG")
    numbers = range(1, 11_789)
    names = [f"{i % 200 + 1:03}.Bird/Bird_{i}.jpg" for i in numbers]
    lists = {
        "classes.txt": "".join(f"{i} {i:03}.Bird\n" for i in range(1, 201)),
        "images.txt": "".join(f"{i} {name}\n" for i, name in zip(numbers, names, strict=True)),
        "image_class_labels.txt": "".join(f"{i} {i % 200 + 1}\n" for i in numbers),
        "train_test_split.txt": "".join(f"{i} {int(i <= 5_994)}\n" for i in numbers),
    }
    members = [(f"CUB_200_2011/{name}", text.encode()) for name, text in lists.items()]
    members += [(f"CUB_200_2011/images/{name}", photograph) for name in names]
    tarred(folder / "CUB_200_2011.tgz", members)
    captions = [
        (f"text_c10/{name[:-4]}.txt", (f"this is word{i % 4_000} of " * 4 + "\n").encode() * 10)
        for i, name in enumerate(names)
    ]
    tarred(folder / "cvpr2016_cub.tar.gz", captions)


WHOLE: dict[str, Callable[[Path], None]] = {
    "shakespeare": shakespeare,
    "sent140": sent140,
    "speech-commands": speech_commands,
    "cub200": cub200,
}
"""Makers of files of the published number of samples, where a generator's are few."""


def makers(name: str) -> list[Callable[[Path], object]]:
    """What writes the files that a set is prepared from, one for each size."""
    if name in WHOLE:
        return [WHOLE[name]]
    return [partial(sources.generator(name).write, **size) for size in SIZES[name]]


def memory(key: str) -> int:
    """A line of /proc/self/status, in bytes: ``VmHWM``, ``RssAnon``."""
    text = Path("/proc/self/status").read_text()
    [line] = [line for line in text.splitlines() if line.startswith(f"{key}:")]
    return int(line.split()[1]) * 1024


def prepare(name: str, files: Path, root: Path) -> dict[str, float]:
    """Prepare a set from ``files`` in this process: seconds, and the largest memory in bytes."""
    where = Where("bench")
    entry = registry.find("data set", name, where)
    keys = {"complete": False} if name in WHOLE else sources.generator(name).PARAMS
    dataset = entry.make(entry.parse(keys, where))
    largest, done, before = [0], threading.Event(), memory("RssAnon")

    def watch() -> None:
        while not done.wait(0.002):
            largest[0] = max(largest[0], memory("RssAnon"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    data.prepare(dataset, name, root / "raw", root / "prepared", Supply(str(files)))
    seconds = time.perf_counter() - begun
    done.set()
    watcher.join()
    return {
        "seconds": seconds,
        "largest": memory("VmHWM"),
        "own": largest[0],
        "added": largest[0] - before,
    }


def apart(name: str, files: Path, root: Path) -> dict[str, float]:
    """`prepare` in a process of its own."""
    command = [sys.executable, "-m", "bench.data", "--prepare", name, str(files), str(root)]
    told = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return dict(json.loads(told.stdout))


def fastest(action: Callable[[], object], repeats: int) -> float:
    """The shortest time of an action, in seconds."""
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        action()
        times.append(time.perf_counter() - begun)
    return min(times)


def gathers(folder: Path, repeats: int) -> tuple[float, float]:
    """Seconds to gather a batch of 64 from the map, and from the same array in memory."""
    mapped = Prepared.open(folder).x
    held, draw = np.array(mapped), np.random.default_rng(0)
    places = [draw.integers(0, len(held), BATCH) for _ in range(BATCHES)]
    times = [
        [fastest(lambda x=x: [x[p] for p in places], 1) for x in (mapped, held)]
        for _ in range(repeats)
    ]
    first, second = (min(side) / BATCHES for side in zip(*times, strict=True))
    return first, second


def line(name: str, found: dict[str, float]) -> str:
    """A row of the table of preparing."""
    sizes = " | ".join(f"{found[key] / 1e6:,.0f}" for key in ("largest", "own", "added"))
    return f"| {name} | {found['seconds']:.1f} | {sizes} |"


def main() -> None:
    """Print the tables in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    sets = [*SIZES, *WHOLE]
    parser.add_argument(
        "sets", nargs="*", type=one_of(sets), help="beside cifar10: " + ", ".join(sets)
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prepare", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.prepare:
        name, files, root = asked.prepare
        print(json.dumps(prepare(name, Path(files), Path(root))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        print("| prepared | seconds | largest, MB | without file pages, MB | of it preparing, MB |")
        print("|---|---:|---:|---:|---:|")
        for name in dict.fromkeys(["cifar10", *asked.sets]):
            for i, make in enumerate(makers(name)):
                files = work / f"{name}-files-{i}"
                files.mkdir()
                make(files)
                found = apart(name, files, work / name)
                samples = len(Prepared.open(work / name / "prepared").y)
                print(line(f"{name}, {samples:,}", found), flush=True)
                if name != "cifar10":
                    shutil.rmtree(work / name)
        folder = work / "cifar10" / "prepared"
        opening = fastest(lambda: Prepared.open(folder), asked.repeats)
        mapped, held = gathers(folder, asked.repeats)
        print(f"\nopening: {1e3 * opening:.1f} ms")
        print(
            f"a batch of {BATCH}: {1e6 * mapped:.0f} us from the map, {1e6 * held:.0f} us from"
            f" memory, {mapped / held:.2f}x"
        )


if __name__ == "__main__":
    main()
