"""ABIDE: connectomes of the resting brain, autism against controls, by the site of the scanner.

A. Di Martino et al. The Autism Brain Imaging Data Exchange: Towards a Large-Scale Evaluation of the
Intrinsic Brain Architecture in Autism. Molecular Psychiatry 2014; C. Craddock et al. The Neuro
Bureau Preprocessing Initiative. Frontiers in Neuroinformatics 2013 (the time series); X. Li, Y. Gu,
N. Dvornek, L. Staib, P. Ventola and J. Duncan. Multi-Site fMRI Analysis Using Privacy-Preserving
Federated Learning and Domain Adaptation. Medical Image Analysis 2020 (the four sites).

Licence: free for non-commercial research; the preprocessed data need no registration.

What comes: the table of the Preprocessed Connectomes Project, and one text file for each of its
1,035 subjects who have them, the mean signals of the 111 regions of the Harvard-Oxford atlas over
time (pipeline C-PAC, band-passed, without global signal regression). Those lie on a public server
one by one; fetch them and pack them as ``rois_ho.zip`` yourself::

    aws s3 sync --no-sign-request s3://fcp-indi/data/Projects/ABIDE_Initiative/\
Outputs/cpac/filt_noglobal/rois_ho rois_ho && zip -r rois_ho.zip rois_ho

What is done: an input is the Pearson correlation of each pair of regions, the upper triangle row by
row: 111 * 110 / 2 = 6,105 numbers. A region without any signal correlates 0 with all. Class 1 is
autism, 0 control. ``sites`` are those of Li et al. by default, as in FedBN's comparison; a site
that scanned in two series (UM, UCLA, LEUVEN) is one. Li et al. take one series of UM and UCLA,
leave out subjects with short scans, cut series into windows and set negative correlations to 0:
none of that is done. The numbers of subjects with time series are asserted.

Memory: the correlations, 24 kB a subject, the table and one series: 18 MB for the four sites.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, Literal, get_args

import numpy as np
import pandas as pd

from fl.base.errors import DataError
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers import validation
from fl.data.readers.archives import iter_members, stream_name
from fl.data.readers.published_domains import matching_name, write_labels

REGIONS = 111
DIAGNOSES = ("control", "autism")
Site = Literal[
    "CALTECH",
    "CMU",
    "KKI",
    "LEUVEN",
    "MAX_MUN",
    "NYU",
    "OHSU",
    "OLIN",
    "PITT",
    "SBL",
    "SDSU",
    "STANFORD",
    "TRINITY",
    "UCLA",
    "UM",
    "USM",
    "YALE",
]
SUBJECTS = (37, 27, 48, 63, 52, 175, 26, 34, 56, 30, 36, 39, 47, 98, 140, 71, 56)
SUBJECTS_BY_SITE: dict[str, int] = dict(zip(get_args(Site), SUBJECTS, strict=True))
"""Subjects with time series, 1,035 in all: A. S. Heinsfeld et al. NeuroImage: Clinical 2018."""

NO_FILE = "no_filename"
BUCKET = "https://s3.amazonaws.com/fcp-indi/data/Projects/ABIDE_Initiative"


@dataclass(frozen=True)
class Abide:
    """Vectors of 6,105 correlations in two classes, one domain for each site.

    Attributes:
        sites: Names of the sites, in the order of domains.
        complete: Check the data against the published sizes; false reads a subset.
    """

    sites: tuple[Site, ...] = ("NYU", "USM", "UM", "UCLA")
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (
        Source(
            "Phenotypic_V1_0b_preprocessed1.csv", f"{BUCKET}/Phenotypic_V1_0b_preprocessed1.csv"
        ),
        Source(
            "rois_ho.zip",
            None,
            note="pack the files of s3://fcp-indi/data/Projects/ABIDE_Initiative/Outputs/cpac"
            "/filt_noglobal/rois_ho, which is public (aws s3 sync --no-sign-request), as this zip",
        ),
    )
    shape: ClassVar[tuple[int, ...]] = (REGIONS * (REGIONS - 1) // 2,)
    classes: ClassVar[int] = len(DIAGNOSES)
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def domains(self) -> tuple[str, ...]:
        """The sites, each once."""
        return tuple(dict.fromkeys(self.sites))

    @property
    def natural_clients(self) -> int:
        """Number of natural clients: one for each site."""
        return len(self.domains)

    @property
    def size(self) -> int | None:
        """Number of samples, or None for a subset."""
        return sum(SUBJECTS_BY_SITE[site] for site in self.domains) if self.complete else None

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x float32 ``[subjects, 6105]``, y int64, domain and client int32 ``[subjects]``.

        Rows are sorted by site, in the order of ``sites``, and in that of the table within one.
        """
        path, archive = (raw / source.name for source in self.sources)
        table = self._subjects(path)
        if self.complete:
            published = {site: SUBJECTS_BY_SITE[site] for site in self.domains}
            validation.check_sizes(
                Counter(table["site"]), published, str(path), "Heinsfeld et al. 2018"
            )
        rows = {f"{name}_rois_ho.1D": row for row, name in enumerate(table["FILE_ID"])}
        x = np.zeros((len(table), *self.shape), np.float32)
        missing = dict.fromkeys(rows)
        for name, stream in iter_members(
            archive, lambda name: matching_name(name, missing) is not None
        ):
            key = str(matching_name(name, rows))
            x[rows[key]] = correlations(series(stream))
            missing.pop(key)
        validation.check_missing(archive, missing)
        writer.save("x", x)
        domain = table["site"].map(self.domains.index).to_numpy()
        write_labels(writer, (table["DX_GROUP"] == 1).to_numpy(), domain, None)
        writer.describe(DIAGNOSES, domains=self.domains)

    def _subjects(self, path: Path) -> pd.DataFrame:
        columns = ["SITE_ID", "FILE_ID", "DX_GROUP"]
        try:
            table = pd.read_csv(path, usecols=columns)
        except (ValueError, OSError) as error:
            required = ", ".join(columns)
            raise DataError(f"{path}: is no table with the columns {required} ({error})") from error
        table["site"] = table["SITE_ID"].str.upper().str.replace(r"_[12]$", "", regex=True)
        table = table[table["site"].isin(self.domains) & (table["FILE_ID"] != NO_FILE)]
        for site in self.domains:
            if site not in set(table["site"]):
                raise DataError(f"{path}: has no subject of {site} with a file")
        for group in set(table["DX_GROUP"]) - {1, 2}:
            raise DataError(f"{path}: DX_GROUP is {group}. Allowed: 1 (autism), 2 (control)")
        order = np.argsort(table["site"].map(self.domains.index).to_numpy(), kind="stable")
        return table.iloc[order]


def series(stream: BinaryIO) -> np.ndarray:
    """The signals in a ``.1D`` file, ``[time, regions]``: numbers below a line of names (#...)."""
    name, content = stream_name(stream), stream.read()
    try:
        values = np.loadtxt(io.StringIO(content.decode()), ndmin=2)
    except ValueError as error:
        raise DataError(f"{name}: is no table of numbers ({error})") from error
    if values.shape[1] != REGIONS or len(values) < 2:
        allowed = f"two rows or more of {REGIONS}"
        raise DataError(f"{name}: has {len(values)} rows of {values.shape[1]}. Allowed: {allowed}")
    return values


def correlations(signals: np.ndarray) -> np.ndarray:
    """Pearson's r of all pairs of columns of ``[time, regions]``, the upper triangle row by row."""
    centred = signals - signals.mean(axis=0)
    length = np.linalg.norm(centred, axis=0)
    unit = np.divide(centred, length, out=np.zeros_like(centred), where=length > 0)
    return (unit.T @ unit)[np.triu_indices(signals.shape[1], 1)]
