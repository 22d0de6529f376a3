"""Training of a track of ``config/tracks``: ``python -m tools.comparison TRACK``.

Its points are chosen on the tuning clients, its scored clients are scored, and the results are
written to ``config/published/tracks/TRACK``. A killed call goes on where it was. Without a track,
the pages are written from the kept results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from fl.base.errors import ConfigError, FedloomError
from fl.base.files import write_bytes
from fl.base.schema import MISSING
from fl.base.units import quantity
from fl.cli.commands import say
from fl.notebook.track_training import TrackTraining
from fl.plan import track as track_file
from fl.plan.track import PARTICIPANTS, Track
from fl.report import claims, kept_tracks, track_claims, track_page, track_verdicts
from fl.report.kept_tracks import TrackResults

CONFIG = Path("config")
PAGE = Path("docs/results/comparison.md")


def registered(found: Track) -> dict[str, str]:
    """Return what fixes the file of a track before it is trained.

    Returns:
        ``claims`` and ``settings``, hashes of what it says of comparisons and of all else that
        decides numbers; ``commit`` and ``date`` of the commit that changed it last.

    Raises:
        ConfigError: If the file is not committed as it is.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(found.path.parent), *arguments, "--", found.path.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            problem = f"is in no repository of git ({done.stderr.strip()})"
            raise ConfigError(found.location, problem, advice="--trial FOLDER, to try it")
        return done.stdout.strip()

    change = git("status", "--porcelain", "--ignored")
    if change:
        problem = "is not committed as it is, so that nobody can know what was decided before"
        advice = "commit it; or --trial FOLDER, to try it"
        raise ConfigError(found.location, problem, advice=advice)
    commit, date = git("log", "-1", "--format=%H %cI").split()
    hashes = {
        "claims": track_claims.comparison_hash(found),
        "settings": track_claims.settings_hash(found),
    }
    return {**hashes, "commit": commit, "date": date}


def entries_at(found: Track, budget: int, place: Path) -> tuple[list[str], pd.DataFrame]:
    """Return the entries of a budget, and the tried points of the budget before.

    At a larger budget these are baselines, the best entries of the budget before, those that were
    ahead there, as their lead may be one of speed, and `Track.always`.

    Args:
        found: The track.
        budget: The multiple of the track's rounds.
        place: Folder of the kept results.

    Raises:
        FedloomError: If the budget is not in the file, or if the one before is not kept.
    """
    multiples = [other.times for other in found.budgets]
    if budget not in multiples:
        location = found.location / "budgets"
        raise ConfigError(location, f"lacks {budget}", ", ".join(map(str, multiples)))
    number = multiples.index(budget)
    if number == 0:
        return found.entries(), pd.DataFrame()
    kept = kept_tracks.read(place)
    tried = kept.tried[kept.tried["budget"] == multiples[number - 1]]
    if tried.empty:
        advice = f"--budget {multiples[number - 1]} first"
        raise FedloomError(f"{place}: lacks the budget {multiples[number - 1]}", advice=advice)
    compared = tried[kept_tracks.is_chosen(tried, PARTICIPANTS)]
    compared = compared[compared["entry"].isin(found.entries())]
    of_entries = compared.groupby("entry", sort=False)[PARTICIPANTS]
    means = found.sign * of_entries.agg(lambda values: values.mean(skipna=False))
    best = means.sort_values(ascending=False, kind="stable").index[: found.budgets[number].best]
    table = track_verdicts.verdicts(kept, found, multiples[number - 1])
    leads = table.loc[table["verdict"] == claims.AHEAD, "entry"]
    always = {*found.always, *(family.baseline for family in found.families.values())}
    return [name for name in found.entries() if name in {*best, *leads, *always}], tried


def train(found: Track, budget: int, place: Path, about: dict[str, str]) -> TrackResults:
    """Tune and score a track at a budget; write what is kept.

    Args:
        found: The track.
        budget: The multiple of the track's rounds.
        place: Folder of the kept results.
        about: What is known of the track's file.
    """
    entries, previous = entries_at(found, budget, place)
    training = TrackTraining(found, CONFIG, budget, progress=True, previous=previous)
    say(f"{found.name}: {quantity(len(entries), 'method')}, budget {budget}: tuning")
    tuned = training.tune(entries)
    for (name, role), trial in tuned.chosen.items():
        edges = tuned.at_edge[name, role]
        remark = f", at an edge: {', '.join(edges)}" if edges else ""
        say(f"  {name}, {role}: {track_file.point_text(trial.point) or 'no grid'}{remark}")
    if failed := int((tuned.tried["state"] == MISSING).sum()):
        say(f"  {quantity(failed, 'run')} of tuning failed; the points of these are not chosen")
    say(f"{found.name}: scoring")
    new = replace(training.score(tuned, entries), about={str(budget): about})
    return kept_tracks.write(place, new)


def train_track(name: str, division: int, budget: int, trial: Path | None) -> None:
    """Train a track, and say its verdicts.

    Args:
        name: Name of the track.
        division: Seed by which tuning clients are chosen; of the file's own the results are the
            track's, of another one they are a second opinion beside them.
        budget: The multiple of the track's rounds.
        trial: Folder of results that are not to be published.
    """
    found = track_file.read(CONFIG, name)
    is_second = division != found.clients.division
    about = {} if trial else registered(found)
    place = kept_tracks.folder_of(trial or CONFIG, name)
    own_place = kept_tracks.folder_of(trial or CONFIG, name, is_second)
    kept = train(found.of_division(division), budget, own_place, about)
    table = track_verdicts.verdicts(kept, found, budget)
    for row in table.to_dict("records"):
        say(
            f"{row['family']}: {row['entry']} from {row['other']}: {row['difference']:+.4f} "
            f"({row['low']:+.4f} to {row['high']:+.4f}), p {row['p']:.3f}: {row['verdict']}"
        )
    if is_second and place.exists():
        same, count = track_claims.count_kept(
            track_verdicts.verdicts(kept_tracks.read(place), found, budget), table
        )
        say(f"{name}: {same} of {quantity(count, 'claim')} of the first division are kept")
    say(own_place)


def plan_track(name: str) -> None:
    """Check that every entry of a track is possible; nothing is trained."""
    found = track_file.read(CONFIG, name)
    count = TrackTraining(found, CONFIG).plan(found.entries())
    say(f"{name}: {quantity(len(found.methods), 'method')}, {quantity(count, 'run')} of one draw")


def write_pages() -> None:
    """Write the page of all tracks that have kept results, and its pictures.

    Raises:
        DataError: If no track has kept results.
    """
    tracks = track_claims.read(kept_tracks.source(CONFIG))
    pictures = PAGE.parent / track_page.PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    by_name = track_page.pictures(tracks)
    for path in pictures.glob("*.svg"):
        if path.stem not in by_name:
            path.unlink()
    for name, picture in by_name.items():
        write_bytes(pictures / f"{name}.svg", picture.files()[".svg"])
    write_bytes(PAGE, track_page.markdown(tracks).encode())
    say(PAGE)


def main(arguments: Sequence[str] = ()) -> int:
    """Train a track, or write the pages."""
    parser = argparse.ArgumentParser("python -m tools.comparison", description=__doc__)
    parser.add_argument("track", nargs="?", help="name of a track of config/tracks")
    parser.add_argument("--division", type=int, help="other tuning clients than those of the file")
    parser.add_argument("--budget", type=int, default=1, help="multiple of the track's rounds")
    parser.add_argument("--trial", type=Path, help="folder of results that are not published")
    parser.add_argument("--plan", action="store_true", help="check the track, and train nothing")
    parsed = parser.parse_args(arguments)
    try:
        if parsed.track is None:
            write_pages()
        elif parsed.plan:
            plan_track(parsed.track)
        else:
            own = track_file.read(CONFIG, parsed.track).clients.division
            division = own if parsed.division is None else parsed.division
            train_track(parsed.track, division, parsed.budget, parsed.trial)
    except FedloomError as error:
        say(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
