"""The result of `fl.compare`: a method beside kept entries of tracks, as text, table or figure."""

from __future__ import annotations

import html
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pandas as pd

from fl.base.schema import SHARES
from fl.blocks.plotting import Picture
from fl.notebook.display import short_traceback
from fl.report import latex, page, track_figures, track_page
from fl.report.cells import Table, number, probability
from fl.report.track_claims import TrackClaims


@dataclass(frozen=True, repr=False)
class Comparison:
    """Result of `fl.compare`; printed, it is a text, and in a notebook a table.

    Attributes:
        method: Name of the method.
        tracks: The tracks, each with the verdicts on the method and on all kept entries.
        remarks: Remarks, such as the point that was chosen, or a failed check.
    """

    method: str
    tracks: tuple[TrackClaims, ...]
    remarks: tuple[str, ...]

    @property
    def table(self) -> pd.DataFrame:
        """The comparisons in which the method takes part, `fl.report.track_verdicts.verdicts`."""
        tables = [track.verdicts.assign(track=track.name) for track in self._own_tracks()]
        return pd.concat(tables, ignore_index=True)

    def __repr__(self) -> str:
        lines = [
            line
            for own, track in zip(self._own_tracks(), self.tracks, strict=True)
            for line in _lines(track, own.verdicts)
        ]
        return "\n".join([*lines, *self.remarks])

    def _repr_html_(self) -> str:
        table = page.table_html(track_page.long_table(self._own_tracks()))
        return table + "".join(f"<p>{html.escape(remark)}</p>" for remark in self.remarks)

    def tables(self, others: bool = False) -> list[Table]:
        """Return the comparisons of the method as a table.

        Args:
            others: Whether to return a table of each of its families instead, with all kept
                entries: their differences from the baseline, and verdicts, on all tracks.
        """
        if not others:
            return [track_page.long_table(self._own_tracks())]
        families = {*self.table["family"]}
        return [t for t in track_page.overview_tables(self.tracks) if t.name in families]

    @short_traceback
    def to_latex(self, others: bool = False) -> str:
        """Return `tables` in LaTeX, with remarks as comments."""
        head = f"% needs {latex.PREAMBLE}\n{latex.FITTED}\n{latex.UNICODE}\n"
        remarks = "".join(f"% {remark}\n" for remark in self.remarks)
        tables = [latex.to_latex(table, table.name) for table in self.tables(others)]
        return head + remarks + "\n".join(tables)

    def picture(self) -> Picture:
        """Return a figure of all entries on all tracks; its ``files()`` are an SVG and a PDF."""
        return track_figures.overview(self.tracks)

    def _own_tracks(self) -> list[TrackClaims]:
        """Return the tracks with the verdicts on the method alone."""
        tables = [track.verdicts for track in self.tracks]
        own = [t[(t["entry"] == self.method) | (t["other"] == self.method)] for t in tables]
        pairs = zip(self.tracks, own, strict=True)
        return [replace(track, verdicts=table) for track, table in pairs]


def _lines(track: TrackClaims, own: pd.DataFrame) -> Iterable[str]:
    """Yield a line for each comparison of a method on a track."""
    for row in own.to_dict("records"):
        head = f"{track.name}, {row['family']}: {track.title_of(row['entry'])}"
        verdict = track_page.verdict_text(track, row)
        if pd.isna(row["difference"]):
            yield f"{head}: {verdict}"
            continue
        family = track.verdicts[track.verdicts["family"] == row["family"]]["difference"]
        place = int((family > row["difference"]).sum()) + 1
        value = number(track.value_of(row["entry"], row["clients"]), track.file.metric)
        value += " %" if track.file.metric in SHARES else f" {track.file.metric.upper()}"
        gain, low, high = (track.shown(row[key]) for key in ("difference", "low", "high"))
        same = ", as all values are equal" if row["better"] == row["worse"] == 0 else ""
        yield (
            f"{head} has {value}; {gain} ({low} to {high}) {track.unit_text} from "
            f"{track.title_of(row['other'])} over {row['n']:.0f} clients, "
            f"p {probability(row['p'])}: {verdict}{same}; place {place} of {family.count()} in its "
            "family"
        )
