"""The catalogue of benchmarks: what holds for every entry, errors and summaries."""

import gzip
import re
import zipfile
from pathlib import Path

import pytest

from distilcal.data import Choices, Images, Texts
from distilcal.data.benchmark import Benchmark
from distilcal.data.catalogue import _ENTRIES, BENCHMARKS, load_benchmark, summarise_benchmark
from distilcal.errors import InputError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
KINDS = {"text": Texts, "text pair": Texts, "multiple choice": Choices, "image": Images}
every = pytest.mark.parametrize("name", BENCHMARKS)


def test_names_are_unique():
    assert len(BENCHMARKS) == len(_ENTRIES) >= 40


@every
def test_entry_is_complete(name):
    entry = BENCHMARKS[name]
    assert entry.kind in KINDS
    assert all((entry.task, entry.folder, entry.licence, entry.paper, entry.note))
    assert len(set(entry.classes)) == len(entry.classes) >= 2
    if entry.on_hub is not None:
        assert entry.hub
        assert len(entry.on_hub.names) in (0, len(entry.classes))
        assert {s for names in entry.on_hub.splits for s in names.split("+")} <= {"train", "dev", "test"}


@every
def test_partners_have_the_same_classes(name):
    for other in BENCHMARKS[name].ood:
        assert other != name
        assert set(BENCHMARKS[other].classes) == set(BENCHMARKS[name].classes), other


def test_sentiment_of_films_is_not_out_of_domain_for_sst():
    assert "vader_movie" not in BENCHMARKS["sst2"].ood
    assert "sst2" not in BENCHMARKS["vader_movie"].ood


@every
def test_entry_stands_in_the_documentation(name):
    entry = BENCHMARKS[name]
    row = re.search(rf"^\| `{name}` \|.*$", PAGE, re.M)
    assert row, "add a row to docs/benchmarks.md"
    assert entry.task in row[0]
    assert entry.licence in row[0]
    assert not entry.hub or f"`{entry.hub}`" in row[0]
    assert f"`{entry.folder}/`" in PAGE


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else open(path, "w", encoding="utf-8") as file:
        file.write(text)


def test_unknown_names_bring_near_ones():
    with pytest.raises(InputError, match=r"did you mean .*goemotions_ekman"):
        load_benchmark("goemotion")
    with pytest.raises(InputError, match=r"docs/benchmarks\.md"):
        load_benchmark("?")


def test_without_a_folder_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("DISTILCAL_DATA", raising=False)
    with pytest.raises(InputError, match=r"DISTILCAL_DATA.*sst2/.*docs/benchmarks\.md.*nyu-mll/glue/sst2.*source=.hub."):
        load_benchmark("sst2", source="folder")
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"meld.*DISTILCAL_DATA.*docs/benchmarks\.md.*declare-lab/MELD"):
        load_benchmark("meld")
    with pytest.raises(InputError, match="not read from the hub"):
        load_benchmark("vader_movie", source="hub")


def test_files_that_are_missing_doubled_or_damaged_are_named(tmp_path):
    folder = tmp_path / "goemotions"
    folder.mkdir()
    with pytest.raises(InputError, match=r"emotions\.txt"):
        load_benchmark("goemotions_ekman", root=tmp_path)
    (folder / "emotions.txt").write_text("joy\nneutral")
    (folder / "ekman_mapping.json").write_text('{"joy": ["joy"]}')
    for split in ("train", "dev", "test"):
        (folder / f"{split}.tsv").write_text("some text\t5\tid1\n")
    with pytest.raises(InputError, match="cannot be read as goemotions_ekman: IndexError"):
        load_benchmark("goemotions_ekman", root=tmp_path)
    (folder / "train.tsv.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"train\.tsv, train\.tsv\.gz"):
        load_benchmark("goemotions_ekman", root=tmp_path)
    (tmp_path / "tiny_imagenet10").mkdir()
    with zipfile.ZipFile(tmp_path / "tiny_imagenet10" / "tiny_imagenet10.zip", "w") as archive:
        archive.writestr("other.txt", "")
    with pytest.raises(InputError, match="tiny_imagenet10"):
        load_benchmark("tiny_imagenet10", root=tmp_path)


def mrpc(folder):
    rows = {
        "train": "0\ta b\tc\t1\n1\td\te\t0\n2\tf\tg\t1\n",
        "validation": "3\tA  B\tC\t1\n4\th\ti\t0\n",
        "test": "5\td\te\t0\n",
    }
    for split, text in rows.items():
        write(folder / f"{split}.tsv", f"idx\tsentence1\tsentence2\tlabel\n{text}")


def test_summary_counts_rows_classes_and_overlaps(tmp_path):
    mrpc(tmp_path / "mrpc")
    found = summarise_benchmark("mrpc", root=tmp_path)
    assert found.benchmark is BENCHMARKS["mrpc"]
    assert found.sizes == {"train": 3, "dev": 2, "test": 1}
    assert found.counts["train"] == {"different": 1, "paraphrase": 2}
    assert found.overlaps == {("train", "dev"): 1, ("train", "test"): 1, ("dev", "test"): 0}
    assert found.examples == (("different", "d ⏐ e"), ("paraphrase", "a b ⏐ c"))
    assert (found.groups, found.soft_labels) == ({}, False)


def test_summary_of_sensitive_data_shows_no_example(tmp_path):
    rows = "".join(f"s{i},r{i},seeker {i},answer {i},{i % 3},\n" for i in range(40))
    write(
        tmp_path / "epitome" / "explorations-reddit.csv.gz", f"sp_id,rp_id,seeker_post,response_post,level,rationales\n{rows}"
    )
    found = summarise_benchmark("epitome_explorations", root=tmp_path)
    assert found.examples == ()
    assert found.sizes == {"train": 30, "dev": 2, "test": 8}
    assert sum(c["some"] for c in found.counts.values()) == 26
    assert found.groups == found.sizes
    assert all(BENCHMARKS[n].sensitive for n in BENCHMARKS if n.startswith("epitome"))


def test_a_benchmark_of_ones_own():
    entry = BENCHMARKS["mrpc"]
    own = Benchmark("own", "a task", "text pair", entry.classes, "", "own", "mine", "none", "a note", reader=entry.reader)
    assert own.ood == ()
    with pytest.raises(InputError, match="own is not read from the hub"):
        own.read_hub()
