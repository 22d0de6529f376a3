"""Birds in the archives of Caltech-UCSD Birds 2011 and of Reed et al.'s captions.

The names, lists and folders are those that the set's README and torchvision-style readers of it
describe; the captions' are those that readers of Reed et al.'s release open.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from sources import Made
from sources.packing import pack

SPECIES = ("001.Black_footed_Albatross", "002.Laysan_Albatross", "200.Common_Yellowthroat")
PHOTOGRAPHS = 5
"""Number of photographs of each species; the last one is for testing."""
CAPTION = "This bird's wings are {}, and it has a {} beak-like nose."
COLOURS, LENGTHS = ("black", "grey", "yellow"), ("long", "short")


def classes() -> list[str]:
    """All 200; the real names of those that there are photographs of."""
    made = [f"{i:03}.Bird_{i}" for i in range(1, 201)]
    for name in SPECIES:
        made[int(name[:3]) - 1] = name
    return made


def names() -> list[str]:
    """The photographs, in the order of images.txt, which is not that of their names."""
    stems = [species.partition(".")[2] for species in SPECIES]
    return [
        f"{species}/{stem}_{9 - i:04}_{100 * k + i}.jpg"
        for k, (species, stem) in enumerate(zip(SPECIES, stems, strict=True))
        for i in range(PHOTOGRAPHS)
    ]


def colour(place: int) -> tuple[int, int, int]:
    """The colour of the photograph at that place in images.txt; grey files are grey."""
    return (40 + 10 * place,) * 3 if grey(place) else (200 - 10 * place, 30, 10 * place)


def grey(place: int) -> bool:
    """Whether the photograph is a file of grey values, as a few of the set are."""
    return place == PHOTOGRAPHS


def jpeg(place: int) -> bytes:
    """A photograph of one colour, wider than high."""
    mode, fill = ("L", colour(place)[0]) if grey(place) else ("RGB", colour(place))
    file = io.BytesIO()
    Image.new(mode, (50 + place, 40), fill).save(file, "JPEG", quality=95, subsampling=0)
    return file.getvalue()


def captions(place: int) -> list[str]:
    """Ten of the photograph at that place; the last has a word that no other has."""
    said = [CAPTION.format(COLOURS[(place + i) % len(COLOURS)], LENGTHS[i % 2]) for i in range(9)]
    return [*said, f"Unique{place} \ufffd bird."]


def lists() -> dict[str, str]:
    """The four text files."""
    numbered = list(enumerate(names(), 1))
    species = [classes().index(name.split("/")[0]) for _, name in numbered]
    return {
        "classes.txt": "".join(f"{i} {name}\n" for i, name in enumerate(classes(), 1)),
        "images.txt": "".join(f"{i} {name}\n" for i, name in numbered),
        "image_class_labels.txt": "".join(
            f"{i} {k + 1}\n" for (i, _), k in zip(numbered, species, strict=True)
        ),
        "train_test_split.txt": "".join(f"{i} {int(i % PHOTOGRAPHS > 0)}\n" for i, _ in numbered),
    }


def photographs() -> dict[str, bytes]:
    """Every member of the set's archive; the photographs before the lists."""
    made = {f"CUB_200_2011/images/{name}": jpeg(i) for i, name in enumerate(names())}
    made |= {f"CUB_200_2011/{name}": text.encode() for name, text in lists().items()}
    return {"attributes.txt": b"1 has_bill_shape::curved_(up_or_down)\n", **made}


def texts() -> dict[str, bytes]:
    """Every member of the captions' archive, of which only text_c10 is read."""
    made = {"allclasses.txt": "".join(f"{name}\n" for name in SPECIES).encode()}
    for i, name in enumerate(names()):
        said = "".join(f"{line}\n" for line in captions(i))
        made[f"text_c10/{name.removesuffix('.jpg')}.txt"] = said.encode()
        made[f"word_c10/{name.removesuffix('.jpg')}.txt"] = b"another form\n"
    return made


LABELS = "CUB_200_2011/image_class_labels.txt"
TEXT = f"text_c10/{names()[2].removesuffix('.jpg')}.txt"
PARAMS = {"complete": False, "side": 16, "vocabulary": 8, "words": 12}
BROKEN = {
    "a list of others": (
        {"spoil": LABELS, "strange": b"1 1\n"},
        r"CUB_200_2011\.tgz: image_class_labels.txt and images.txt list different",
    ),
    "no captions": (
        {"without": TEXT},
        rf"cvpr2016_cub\.tar\.gz: lacks the captions of {names()[2]}",
    ),
}
STUDY = {"partitions": [{"homogeneous": {"clients": 2}}], "models": ["cnn"]}


def write(folder: Path, **broken: object) -> Made:
    """Write both archives into ``folder``."""
    pack(folder / "CUB_200_2011.tgz", photographs(), **broken)
    pack(folder / "cvpr2016_cub.tar.gz", texts(), **broken)
    # "bird" is in ten of ten captions and the rest of these in nine, so by spelling; colours and
    # lengths, which differ, are not among them.
    words = ("bird", "a", "and", "are", "beak", "has", "it", "like")
    said = "this bird s wings are black and it has a long beak"
    nine = [words.index(word) if word in words else 8 for word in said.split()]
    return Made(
        samples=len(names()),
        shape=(3, 16, 16),
        classes=tuple(name[4:].replace("_", " ") for name in classes()),
        y=np.repeat([0, 1, 199], PHOTOGRAPHS),
        x={PHOTOGRAPHS: np.full((3, 16, 16), colour(PHOTOGRAPHS)[0])},
        split=np.tile([0, 0, 0, 0, 1], 3),
        text={0: np.array([*[nine] * 9, [8, 0] + [8] * 10])},
    )
