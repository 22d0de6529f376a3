"""References of a report: the works behind each component that it names, also as BibTeX.

Works are read from the citations in docstrings, ``Authors. Title. Where 2020.``. A citation can
have ``arXiv:`` or ``doi:``, a remark in brackets, and words before the authors that end in a colon.
Several works are separated by ``; ``. Nothing else is known of a work: its entry is a ``@misc``
with the names of the citation, which are often surnames only.

A file of BibTeX beside the components would have full names, but each work would then stand in two
places, and a plugin's one file would no longer be enough to be cited.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl.base import registry
from fl.base.registry import Documentation
from fl.report import privacy
from fl.report.facts import Facts
from fl.report.latex import tex

TITLE = "Fedloom: federated-learning studies that anyone can run again"
AUTHORS = "The Fedloom developers"
"""Authors in ``CITATION.cff``, a file that an installed package does not have."""

WORK = re.compile(
    r"(?:[^.:]*: )?"  # words before the authors
    r"(?P<authors>.+?)(?<!\b[A-Z])\. "  # an initial ends no list of authors
    r"(?P<title>.+?)[.?!] (?P<rest>.*)"
)
YEAR = r"\b(?:19|20)\d\d\b"
REMARK = re.compile(rf"\((?!{YEAR}\))[^()]*\)(?!,)")
INITIALS = re.compile(r"((?:[A-Z]\.[- ]?)+)(.+)")


@dataclass(frozen=True)
class Work:
    """Published work; fields that its citation lacks are empty."""

    authors: str
    title: str
    venue: str
    year: str
    arxiv: str
    doi: str

    @property
    def title_key(self) -> str:
        """Letters of the title, which are equal for all citations of a work."""
        return re.sub(r"\W", "", self.title).lower()

    def joined(self, second: Work) -> Work:
        """Merge two citations of one work."""
        best = max((self, second), key=lambda w: ("et al" not in w.authors, len(w.authors)))
        placed = max((self, second), key=lambda w: (bool(w.venue), w is best))
        return Work(
            authors=best.authors,
            title=best.title,
            venue=placed.venue,
            year=placed.year,
            arxiv=self.arxiv or second.arxiv,
            doi=self.doi or second.doi,
        )

    @property
    def key(self) -> str:
        """Key, such as ``li2020federated``: first author, year, first long word of the title."""
        first = _names(self.authors)[0].replace("{", "").replace("}", "").partition(",")[0]
        words = [word for word in re.split(r"[\W_]+", _plain(self.title)) if len(word) > 3]
        return re.sub(r"\W", "", f"{_plain(first)}{self.year}{(words or [''])[0]}").lower()


def works(citation: str) -> list[Work]:
    """Return the works of a citation in its order; none for ``No paper's: ...``."""
    parsed = (_work(text) for text in citation.split("; ") if not text.startswith("No "))
    return [work for work in parsed if work is not None]


def _work(text: str) -> Work | None:
    match = WORK.match(f"{text} ")
    if match is None:
        return None
    remainder = match["rest"]
    arxiv, doi = (
        re.search(r"arXiv:(\d{4}\.\d{4,5})", remainder),
        re.search(r"doi:([^\s;,]+)", remainder),
    )
    bare = re.sub(r"(arXiv|doi):\S+", "", REMARK.sub("", remainder))
    venue, year = bare, ""
    for year_match in re.finditer(
        YEAR, bare
    ):  # The last one: the number of a report can look like a year.
        venue, year = bare[: year_match.start()].strip(" ,("), year_match.group()
    if not year and arxiv is None:
        return None
    return Work(
        authors=match["authors"],
        title=match["title"],
        venue=venue if year else "",
        year=year or f"20{arxiv[1][:2]}" if arxiv else year,
        arxiv=arxiv[1] if arxiv else "",
        doi=doi[1].rstrip(".") if doi else "",
    )


def cited_components(facts: Facts) -> list[Documentation]:
    """Return the documentation of all components that a study names, and of epsilon."""
    saying = [
        component
        for kind, names in facts.plan.names.items()
        for component in (registry.list_documentation(kind, names) if names else ())
    ]
    if facts.runs["epsilon"].notna().any():
        file = Path(str(privacy.__file__))
        saying.append(
            Documentation("table", "privacy", file, summary="", citation=privacy.CITATION, notes="")
        )
    return saying


def shown_citations(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield the components with a citation, ``method fedprox``, and the citation, for a report."""
    names_by_citation: dict[str, list[str]] = {}
    for component in cited_components(facts):
        if works(component.citation):
            names_by_citation.setdefault(component.citation, []).append(
                f"{component.kind} {component.name}"
            )
    yield from ((", ".join(names), citation) for citation, names in names_by_citation.items())


def document(facts: Facts) -> str:
    """Return the BibTeX file of a report."""
    made_by = facts.runs["fedloom"].dropna().unique()
    return bibtex((component.citation for component in cited_components(facts)), sorted(made_by))


def merge_works(citations: Iterable[str]) -> list[Work]:
    """Return each work of some citations once, with everything that they contain about it."""
    by_title: dict[str, Work] = {}
    for work in (work for citation in citations for work in works(citation)):
        by_title[work.title_key] = work.joined(by_title.get(work.title_key, work))
    return [*by_title.values()]


def bibtex(citations: Iterable[str], versions: Iterable[str] = ()) -> str:
    """Return a BibTeX file of all works in these citations, and of Fedloom.

    Args:
        citations: Citations as methods and data sets write them.
        versions: Versions of Fedloom that made the runs.
    """
    versions_text = ", ".join(versions)
    fedloom = {"author": f"{{{AUTHORS}}}", "title": f"{{{TITLE}}}"}
    bib_entries = [
        # Styles older than 2007, such as plain, have no @software.
        _entry("fedloom", fedloom | {"note": versions_text and f"version {versions_text}"})
    ]
    bib_entries += [_entry(work.key, _fields(work)) for work in merge_works(citations)]
    return "\n".join(bib_entries)


def _fields(work: Work) -> dict[str, Any]:
    return {
        "author": " and ".join(_names(tex(work.authors))),
        "title": f"{{{tex(work.title)}}}",
        "howpublished": tex(work.venue),
        "year": work.year,
        "eprint": work.arxiv,
        "archiveprefix": work.arxiv and "arXiv",
        "doi": work.doi,
    }


def _entry(key: str, fields: Mapping[str, Any]) -> str:
    lines = [f"  {name} = {{{value}}},\n" for name, value in fields.items() if value]
    return f"@misc{{{key},\n{''.join(lines)}}}\n"


def _names(authors: str) -> list[str]:
    """Return names for BibTeX, ``Li, T.``; a surname of several words is in braces."""
    names = re.split(r", | and ", authors.replace(" et al", ", others"))
    return [_name(name) for name in names if name]


def _name(name: str) -> str:
    initials = INITIALS.fullmatch(name)
    if initials:
        return f"{initials[2]}, {initials[1].strip()}"
    return f"{{{name}}}" if " " in name else name


def _plain(text: str) -> str:
    """Return a text without accents."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
