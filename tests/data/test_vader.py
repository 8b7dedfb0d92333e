"""VADER: a table and two archives must give the same."""

import gzip
import io
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from real_benchmarks import DATA, loaded

from distilcal.data.catalogue import BENCHMARKS, load_benchmark, summarise_benchmark
from distilcal.errors import InputError

ROOT = Path(__file__).parents[2]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else open(path, "w", encoding="utf-8") as file:
        file.write(text)


def made_up_ratings():
    """Ids, ratings, texts: forty sentences of ten documents, every fifth neutral, one whose votes and mean disagree."""
    rows = []
    for i in range(40):
        sign = 1 if i % 2 else -1
        ratings = [0, 0, 1, -1] if i % 5 == 0 else [sign, sign * 2, 0, sign]
        rows.append((f"{i // 4 + 1}_{i % 4 + 1}", ratings, f"sentence {i}:  two blanks"))
    rows[7] = ("2_4", [4, 4, -1, -1, -1], "a few are sure, most are against")
    return rows


def add(archive, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def made_up_archive(rows, *, domain="amazonReviewSnippets"):
    """The authors' archive: two files, the ratings in another order, one with a byte order mark, lines ended by CR LF."""
    truth = "".join(f"{i}\t0.0\t{text}\r\n" for i, _, text in rows)
    rated = "".join(f"{i}\t0.0\t1.0\t{ratings}\r\n" for i, ratings, _ in reversed(rows))
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w:gz") as archive:
        add(archive, f"hutto_ICWSM_2014/{domain}_GroundTruth.txt", truth.encode())
        add(archive, f"hutto_ICWSM_2014/{domain}_anonDataRatings.txt", b"\xef\xbb\xbf" + rated.encode())
        add(archive, "../../outside.txt", b"must not be written")
    return inner.getvalue()


@pytest.fixture
def vader_folders(tmp_path):
    rows = made_up_ratings()
    table = "".join(f"amazon\t{i}\t0\t0\t{','.join(map(str, r))}\t{text}\n" for i, r, text in rows)
    write(tmp_path / "table" / "vader" / "ratings.tsv.gz", f"domain\tid\tmean\tn_ratings\tratings\ttext\n{table}")
    (tmp_path / "inner" / "vader").mkdir(parents=True)
    (tmp_path / "inner" / "vader" / "hutto_ICWSM_2014.tar.gz").write_bytes(made_up_archive(rows))
    for root, name in (("outer", "vaderSentiment-3.3.2.tar.gz"), ("lower", "vadersentiment-3.3.2.tar.gz")):
        (tmp_path / root / "vader").mkdir(parents=True)
        with tarfile.open(tmp_path / root / "vader" / name, "w:gz") as archive:
            add(archive, "vaderSentiment-3.3.2/setup.py", b"raise SystemExit")
            add(archive, "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz", made_up_archive(rows))
    return tmp_path


def assert_same(one, two):
    assert list(one) == list(two)
    for split in one:
        a, b = one[split], two[split]
        assert a.fingerprint == b.fingerprint
        assert a.ids.tolist() == b.ids.tolist()
        assert np.array_equal(a.label_probs, b.label_probs)
        assert (a.groups is None) == (b.groups is None)
        assert a.groups is None or a.groups.tolist() == b.groups.tolist()


@pytest.mark.parametrize("other", ["inner", "outer", "lower"])
def test_vader_from_table_and_archives_is_the_same(vader_folders, other):
    before = set(vader_folders.rglob("*"))
    one, two = (load_benchmark("vader_amazon", root=vader_folders / r) for r in ("table", other))
    assert_same(one, two)
    assert set(vader_folders.rglob("*")) == before  # nothing was unpacked


def test_vader_labels_votes_and_groups(vader_folders):
    splits = load_benchmark("vader_amazon", root=vader_folders / "table")
    rows = {i: (d, k) for d in splits.values() for k, i in enumerate(d.ids)}
    assert len(rows) == 40 - 8
    assert not any(int(i.split("-")[1].split("_")[0]) * 4 + int(i[-1]) - 5 in range(0, 40, 5) for i in rows)
    data, row = rows["amazon-1_2"]  # ratings 1, 2, 0, 1
    assert data.classes[data.labels[row]] == "positive"
    assert data.label_probs[row].tolist() == [0.125, 0.875]
    assert data.inputs.text[row] == "sentence 1: two blanks"
    data, row = rows["amazon-2_4"]  # the mean is 1, three of five are below zero
    assert data.classes[data.labels[row]] == "positive"
    assert data.label_probs[row] == pytest.approx([0.6, 0.4])
    assert data.groups[row] == "amazon-2"


def test_vader_that_is_not_there_or_damaged(tmp_path):
    folder = tmp_path / "vader"
    folder.mkdir()
    with pytest.raises(InputError, match=r"neither ratings\.tsv\.gz nor"):
        load_benchmark("vader_nyt", root=tmp_path)
    whole = made_up_archive(made_up_ratings())
    path = folder / "hutto_ICWSM_2014.tar.gz"
    path.write_bytes(whole)
    with pytest.raises(InputError, match="nytEditorialSnippets_GroundTruth"):
        load_benchmark("vader_nyt", root=tmp_path)
    for damaged in (whole[: len(whole) // 2], b"nothing"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="vader_amazon"):
            load_benchmark("vader_amazon", root=tmp_path)


@pytest.mark.parametrize("name", [n for n in BENCHMARKS if n.startswith("vader")])
def test_vader_from_the_real_archive_is_the_same(tmp_path, name):
    places = [DATA / "vader", ROOT / "data" / "vader", ROOT / "demo" / "vader"]
    given = os.environ.get("DISTILCAL_VADER")  # the path of the archive
    found = [Path(given)] if given else [f for p in places for f in p.glob("*.tar.gz") if "vader" in f.name.lower()]
    if not found or not (DATA / "vader" / "ratings.tsv.gz").exists():
        pytest.skip("needs ratings.tsv.gz under DISTILCAL_DATA and vaderSentiment-3.3.2.tar.gz beside it or in DISTILCAL_VADER")
    (tmp_path / "vader").mkdir()
    shutil.copy(found[0], tmp_path / "vader" / found[0].name)
    assert_same(loaded(name), load_benchmark(name, root=tmp_path))


def test_summary_of_votes(vader_folders):
    assert summarise_benchmark("vader_amazon", root=vader_folders / "table").soft_labels
