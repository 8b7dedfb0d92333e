"""The reader of VADER: a table, or the archive in which its authors published it."""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distilcal.data.benchmark_classes import POLARITY
from distilcal.data.benchmark_parts import (
    SplitsByName,
    divide,
    find_table,
)
from distilcal.data.dataset import Dataset, texts
from distilcal.errors import InputError

LARGEST = 1 << 28  # bytes of an archive's member that are read into memory


VADER = {
    "amazon": "amazonReviewSnippets",
    "movie": "movieReviewSnippets",
    "nyt": "nytEditorialSnippets",
    "tweet": "tweets",
}
VADER_ARCHIVE = "hutto_ICWSM_2014.tar.gz"


def read_vader(folder: Path, domain: str) -> SplitsByName:
    """Read texts whose mean rating is beyond ±0.5, with the shares of raters above and below zero; zeros count half each.

    Parameters
    ----------
    folder : Path
        The folder with ratings.tsv* or an archive of VADER.
    domain : str
        The kind of texts, such as ``amazon`` or ``nyt``; the texts of these two are grouped by document.

    Returns
    -------
    dict of str to Dataset
        The splits train, dev and test, with label distributions of shape (N, 2).

    Raises
    ------
    InputError
        If the folder has neither the table nor an archive.
    """
    rows = _vader_rows(folder, domain)
    ratings = [np.array(r.split(","), dtype=np.int64) for _, r, _ in rows]
    mean = np.array([r.mean() for r in ratings])
    up = np.array([np.mean((np.sign(r) + 1) / 2) for r in ratings])
    kept = np.flatnonzero(np.abs(mean) > 0.5)
    ids = np.array([f"{domain}-{name}" for name, _, _ in rows])
    documents = np.array([f"{domain}-{name.partition('_')[0]}" for name, _, _ in rows])
    inputs = texts([" ".join(text.split()) for _, _, text in rows]).take(kept)
    labels = (mean > 0).astype(np.int64)
    # A tweet or snippet of a film review is a document of its own: there, equal texts are what must stay together.
    groups = documents[kept] if domain in ("amazon", "nyt") else None
    data = Dataset(inputs, labels[kept], POLARITY, ids[kept], np.c_[1 - up, up][kept], groups)
    return divide(data, "train+dev+test")


def _vader_rows(folder: Path, domain: str) -> list[tuple[str, str, str]]:
    """Return id, ratings with commas between, and text of each row."""
    if sorted(folder.glob("ratings.tsv*")):
        table = find_table(folder, "ratings.tsv*")
        rows = zip(*(table.texts(c) for c in ("domain", "id", "ratings", "text")), strict=True)
        return [(name, ratings, text) for d, name, ratings, text in rows if d == domain]
    archives = [f for f in sorted(folder.iterdir()) if re.fullmatch(r"(vadersentiment-.*|hutto_.*)\.tar\.gz", f.name.lower())]
    if not archives:
        raise InputError(
            "neither ratings.tsv.gz nor an archive of VADER is in it",
            source=str(folder),
            remedy="get vaderSentiment-3.3.2.tar.gz, see docs/benchmarks.md",
        )
    path = archives[0]
    raw = path.read_bytes()
    if path.name.lower() != VADER_ARCHIVE.lower():
        raw = _members(raw, [VADER_ARCHIVE], path)[0]
    names = [f"{VADER[domain]}_{what}.txt" for what in ("GroundTruth", "anonDataRatings")]
    truth, rated = (_lines(content) for content in _members(raw, names, path))
    ratings = {fields[0]: fields[3].strip("[]").replace(" ", "") for fields in rated}
    return [(fields[0], ratings[fields[0]], fields[2]) for fields in truth]


def _members(archive: bytes, names: Sequence[str], path: Path) -> list[bytes]:
    """Return the contents of files in a tar.gz by their last names; nothing is written to disk."""
    contents: dict[str, bytes] = {}
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
        for member in opened:
            name = member.name.rpartition("/")[2]
            if name in names and member.isfile() and member.size <= LARGEST:
                content = opened.extractfile(member)
                assert content is not None
                contents[name] = content.read()
    missing = [n for n in names if n not in contents]
    if missing:
        raise InputError(f"{missing[0]} is not in it", source=str(path), remedy="get vaderSentiment-3.3.2.tar.gz again")
    return [contents[n] for n in names]


def _lines(content: bytes) -> list[list[str]]:
    return [line.rstrip("\r").split("\t") for line in content.decode("utf-8-sig").split("\n") if line.strip()]
