"""Benchmarks: what holds for every entry, the counts their sources state, and made-up folders for those that are not here."""

import gzip
import io
import json
import os
import re
import shutil
import tarfile
import zipfile
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from distilcal.data import Choices, Images, Texts, overlap, sources
from distilcal.data.benchmarks import CIFAR10, CIFAR100, NEWSGROUPS, body_of
from distilcal.data.catalogue import _ENTRIES, BENCHMARKS, Benchmark, load_benchmark, summary
from distilcal.errors import InputError

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("DISTILCAL_DATA", ROOT.parent / "shared" / "data"))
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")

# What the sources state, before anything is left out; a+b is the sum of two splits.
STATED = {
    "goemotions_ekman": {"train": 43_410, "dev": 5_426, "test": 5_427},
    "meld": {"train": 9_989, "dev": 1_109, "test": 2_610},
    "epitome_emotional_reactions": {"train+dev+test": 3_084},
    "epitome_explorations": {"train+dev+test": 3_084},
    "epitome_interpretations": {"train+dev+test": 3_084},
    "news_empathy": {"train+dev+test": 1_860},
    "yelp": {"train+dev": 5_000 - 516, "test": 5_000 - 545},
    "yelp_sentences": {"train+dev": 126_670, "test": 63_483},
    "sst2": {"train": 67_349, "dev": 872, "test": 1_821},
    "snli": {"train": 19_999, "dev": 9_842, "test": 9_824},
    "mnli": {"train": 9_888, "dev+test": 6_238},
    "xnli_en": {"test": 2_490},
    "chaosnli_snli": {"test": 1_514},
    "chaosnli_mnli": {"test": 1_599},
    "twitter_ppdb": {"train+dev": 42_200, "test": 9_324},
    "twitter_ppdb_votes": {"test": 10_110 - 786},
    "mrpc": {"train": 3_668, "dev": 408, "test": 1_725},
    "paws_x_en": {"test": 2_000},
    "qnli": {"train+dev+test": 5_463},
    "hellaswag": {"train": 10_000, "dev+test": 10_042},
    "swag": {"test": 500},
    "codah": {"train+dev+test": 2_776},
    "adv_glue_sst2": {"test": 148},
    "adv_glue_qqp": {"test": 78},
    "adv_glue_mnli": {"test": 121},
    "adv_glue_qnli": {"test": 148},
    "twenty_newsgroups": {"train+dev": 11_314 - 49, "test": 7_532 - 33},  # less those that are empty when stripped
    "twenty_newsgroups_raw": {"train+dev": 11_314, "test": 7_532},
    "cifar10": {"train+dev": 10_000, "test": 10_000},
    "cifar10h": {"test": 10_000},
    "cifar100": {"train+dev": 8_000, "test": 2_000},
    "tiny_imagenet10": {"train+dev": 1_500, "test": 500},
    "fashion_mnist": {"train+dev": 6_000, "test": 2_000},
    "vader_movie": {"train+dev+test": 10_605 - 562},
    "vader_amazon": {"train+dev+test": 2_943},
    "vader_tweet": {"train+dev+test": 3_362},
    "vader_nyt": {"train+dev+test": 2_788},
}
CLASSES = {  # rows per class over all splits
    "epitome_emotional_reactions": {"none": 2_037, "some": 895 + 152},
    "epitome_explorations": {"none": 2_604, "some": 104 + 376},
    "epitome_interpretations": {"none": 1_626, "some": 114 + 1_344},
    "yelp": {"negative": 1_185 + 1_141, "positive": 3_299 + 3_314},
    "yelp_sentences": {"negative": 25_278 + 50_278, "positive": 38_205 + 76_392},
    "xnli_en": {"entailment": 830, "neutral": 830, "contradiction": 830},
    "twitter_ppdb": {"different": 31_033 + 7_504, "paraphrase": 11_167 + 1_820},
    "mrpc": {"different": 1_194 + 129 + 578, "paraphrase": 2_474 + 279 + 1_147},
    "qnli": {"entailment": 2_702, "not_entailment": 2_761},
    "swag": {"0": 123, "1": 109, "2": 144, "3": 124},
    "vader_movie": {"negative": 5_061, "positive": 4_982},
}
# Rows of the second split that read like one of the first. Where nothing is stated there are none.
OVERLAPS = {
    "goemotions_ekman": {("train", "dev"): 49, ("train", "test"): 42, ("dev", "test"): 14},
    "meld": {("train", "dev"): 135, ("train", "test"): 331, ("dev", "test"): 210},
    "yelp_sentences": {("train", "test"): 7_143, ("dev", "test"): 845},
    "sst2": {("train", "test"): 5},
    "twenty_newsgroups": {("train", "dev"): 2, ("train", "test"): 12, ("dev", "test"): 2},
    "vader_amazon": {("train", "test"): 2, ("dev", "test"): 1},
}
GROUPS = {  # distinct groups over all splits; None where the source states no number
    "meld": 1_432,
    "epitome_emotional_reactions": 2_979,
    "epitome_explorations": 2_979,
    "epitome_interpretations": 2_979,
    "news_empathy": 372,
    "twitter_ppdb": 3_553 + 769,
    "twitter_ppdb_votes": 769,
    **dict.fromkeys(["snli", "mnli", "xnli_en", "chaosnli_snli", "chaosnli_mnli", "qnli", "hellaswag", "swag", "codah"]),
    **dict.fromkeys(["twenty_newsgroups", "twenty_newsgroups_raw", "vader_amazon", "vader_nyt"]),
}
DIVIDED = [name for name, sizes in STATED.items() if any("+" in split for split in sizes)]
KINDS = {"text": Texts, "text pair": Texts, "multiple choice": Choices, "image": Images}
every = pytest.mark.parametrize("name", BENCHMARKS)


@cache
def read(name):
    return load_benchmark(name, root=DATA)


def loaded(name):
    """A benchmark's splits, or the test is skipped."""
    folder = BENCHMARKS[name].folder
    if not (DATA / folder).is_dir():
        pytest.skip(f"no data: set DISTILCAL_DATA to a folder that holds {folder}/")
    return read(name)


# ---- the entries -------------------------------------------------------------------------------------------------------


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
        assert len(entry.on_hub.names) == len(entry.classes)
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


# ---- real data ---------------------------------------------------------------------------------------------------------


@every
def test_splits_are_well_formed(name):
    entry, splits = BENCHMARKS[name], loaded(name)
    assert list(splits) == [s for s in ("train", "dev", "test") if s in splits]
    for split, data in splits.items():
        assert (data.role, data.name) == (split, f"{name}-{split}")
        assert data.classes == entry.classes
        assert set(np.unique(data.labels)) == set(range(len(entry.classes)))
        assert len(set(data.ids)) == len(data)
        assert isinstance(data.inputs, KINDS[entry.kind])
        if isinstance(data.inputs, Texts):
            assert (data.inputs.pair is not None) == (entry.kind == "text pair")
            assert all(t.strip() for t in data.inputs.text)


@pytest.mark.parametrize("name", STATED)
def test_stated_counts(name):
    splits = loaded(name)
    assert {s for names in STATED[name] for s in names.split("+")} == set(splits)
    for names, count in STATED[name].items():
        assert sum(len(splits[s]) for s in names.split("+")) == count, names


@pytest.mark.parametrize("name", CLASSES)
def test_stated_classes(name):
    found = Counter(data.classes[i] for data in loaded(name).values() for i in data.labels)
    assert dict(found) == CLASSES[name]


@pytest.mark.parametrize("name", [n for n, sizes in STATED.items() if len(sizes) > 1 or n in DIVIDED])
def test_stated_overlaps(name):
    splits = loaded(name)
    found = {
        (a, b): len(overlap(splits[a], splits[b]))
        for a in splits
        for b in splits
        if list(splits).index(a) < list(splits).index(b)
    }
    assert {pair: n for pair, n in found.items() if n} == OVERLAPS.get(name, {})


@pytest.mark.parametrize("name", STATED)
def test_what_would_leak_is_a_group(name):
    splits = loaded(name)
    assert {data.groups is not None for data in splits.values()} == {name in GROUPS}
    if GROUPS.get(name):
        assert len({g for data in splits.values() for g in data.groups}) == GROUPS[name]


@pytest.mark.parametrize("name", DIVIDED)
def test_divided_splits_share_no_group(name):
    splits = loaded(name)
    for names in STATED[name]:
        parts = [splits[s] for s in names.split("+")]
        for i, part in enumerate(parts):
            for other in parts[i + 1 :]:
                if part.groups is not None:
                    assert not set(part.groups) & set(other.groups)
                elif isinstance(part.inputs, Texts):
                    assert not len(overlap(part, other))
                assert not set(part.ids) & set(other.ids)


@pytest.mark.parametrize("name", DIVIDED)
def test_divided_splits_have_their_shares_and_are_alike(name):
    splits = loaded(name)
    shares = {"train+dev": (0.9, 0.1), "dev+test": (0.5, 0.5), "train+dev+test": (0.7, 0.1, 0.2)}
    for names in STATED[name]:
        parts = [splits[s] for s in names.split("+")]
        total = sum(map(len, parts))
        wanted = (0.75, 0.05, 0.2) if name.startswith("epitome") else shares.get(names, (1,))
        for part, share in zip(parts, wanted, strict=True):
            assert len(part) / total == pytest.approx(share, abs=0.02)
            # No part has the large groups, or one class: within five standard errors of the whole.
            rates = np.bincount(part.labels, minlength=len(part.classes)) / len(part)
            whole = sum(np.bincount(p.labels, minlength=len(p.classes)) for p in parts) / total
            clustered = 1 if part.groups is None else len(part) / len(set(part.groups))
            assert np.all(np.abs(rates - whole) <= 5 * np.sqrt(clustered * whole * (1 - whole) / len(part)) + 0.01)
            if part.groups is not None:
                sizes = np.concatenate([np.unique(p.groups, return_counts=True)[1] for p in parts])
                mine = np.unique(part.groups, return_counts=True)[1]
                assert abs(mine.mean() - sizes.mean()) <= 5 * sizes.std() / np.sqrt(len(mine)) + 1e-9


def test_divisions_are_fixed():
    # A change here changes results: say so in the changelog.
    assert [len(d) for d in loaded("codah").values()] == [1935, 275, 566]
    again = load_benchmark("codah", root=DATA)
    assert [d.fingerprint for d in again.values()] == [d.fingerprint for d in read("codah").values()]


@pytest.mark.parametrize("name", ["yelp_sentences", "cifar100", "twenty_newsgroups", "tiny_imagenet10"])
def test_files_in_class_order_are_shuffled(name):
    for data in loaded(name).values():
        runs = 1 + np.count_nonzero(np.diff(data.labels))
        expected = len(data) * (1 - np.sum((np.bincount(data.labels) / len(data)) ** 2))
        assert runs == pytest.approx(expected, rel=0.15)


def test_goemotions_draws_among_the_labels_that_raters_left():
    splits = loaded("goemotions_ekman")
    folder = DATA / "goemotions"
    coarse = {e: c for c, es in json.loads((folder / "ekman_mapping.json").read_text()).items() for e in es}
    fine = (folder / "emotions.txt").read_text().split()
    places: Counter[int] = Counter()
    for split, data in splits.items():
        with gzip.open(folder / f"{split}.tsv.gz", "rt", encoding="utf-8", newline="\n") as file:
            given = {line.rstrip("\n").split("\t")[2]: line.split("\t")[1].split(",") for line in file}
        for name, label in zip(data.ids, data.labels, strict=True):
            left = sorted({coarse.get(fine[int(v)], fine[int(v)]) for v in given[name]})
            assert data.classes[label] in left
            if len(left) == 2:
                places[left.index(data.classes[label])] += 1
    share = places[0] / places.total()
    assert places.total() > 3000
    assert share == pytest.approx(0.5, abs=0.03)


def test_epitome_is_divided_alike_for_all_mechanisms():
    one, *others = (loaded(n) for n in BENCHMARKS if n.startswith("epitome"))
    for other in others:
        for split in one:
            assert one[split].ids.tolist() == other[split].ids.tolist()
            assert one[split].labels.tolist() != other[split].labels.tolist()


def test_votes_on_paraphrases_are_those_of_the_test():
    hard, soft = loaded("twitter_ppdb")["test"], loaded("twitter_ppdb_votes")["test"]
    assert hard.labels.tolist() == soft.labels.tolist()
    assert (soft.label_probs.argmax(axis=1) == soft.labels).all()
    assert set(np.round(soft.label_probs[:, 1] * 6, 9)) == {0, 1, 2, 4, 5, 6}


def test_people_and_labels_of_cifar10():
    plain, human = loaded("cifar10")["test"], loaded("cifar10h")["test"]
    assert plain.ids.tolist() == human.ids.tolist()
    assert plain.labels.tolist() == human.labels.tolist()
    assert np.mean(human.label_probs.argmax(axis=1) == human.labels) == pytest.approx(0.9921)


def test_chaosnli_has_a_hundred_votes_on_items_of_the_validation_sets():
    chaos = loaded("chaosnli_snli")["test"]
    snli = loaded("snli")
    assert [len(overlap(snli[s], chaos)) for s in snli] == [0, len(chaos), 0]
    for name in ("chaosnli_snli", "chaosnli_mnli"):
        data = loaded(name)["test"]
        assert np.allclose(np.round(data.label_probs * 100), data.label_probs * 100)
        assert np.all(data.label_probs[np.arange(len(data)), data.labels] == data.label_probs.max(axis=1))


def letters(text):
    return re.sub("[^a-z]", "", text.lower())


def test_most_film_snippets_of_vader_are_in_sst():
    known = {letters(t) for data in loaded("sst2").values() for t in data.inputs.text}
    found = sum(letters(t) in known for data in loaded("vader_movie").values() for t in data.inputs.text)
    assert 7_500 < found < 7_650


def test_messages_are_stripped_of_what_tells_the_group():
    raw, bodies = loaded("twenty_newsgroups_raw"), loaded("twenty_newsgroups")
    for split, data in bodies.items():
        assert set(data.ids) < set(raw[split].ids)
        assert not any(re.search(r"^\s*>", t, re.M) for t in data.inputs.text)
        headed = [bool(re.search(r"^(From|Organization): ", t, re.M)) for t in data.inputs.text]
        assert np.mean(headed) < 0.01  # messages that hold another one
        assert np.mean([bool(re.search(r"^From: ", t, re.M)) for t in raw[split].inputs.text]) == 1


def test_vader_keeps_what_is_beyond_half_a_point():
    for name in (n for n in BENCHMARKS if n.startswith("vader")):
        loaded(name)
    path = DATA / "vader" / "ratings.tsv.gz"
    if not path.exists():
        pytest.skip("the table of ratings is not here")
    rows: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        next(file)
        for line in file:
            domain, _, _, _, ratings, _ = line.split("\t", 5)
            given = [int(r) for r in ratings.split(",")]
            rows[domain] += 1
            kept[domain] += 2 * abs(sum(given)) > len(given)
    assert rows == {"amazon": 3_708, "movie": 10_605, "nyt": 5_190, "tweet": 4_200}
    assert {f"vader_{d}": {"train+dev+test": n} for d, n in kept.items()} == {
        n: s for n, s in STATED.items() if n.startswith("vader")
    }


# ---- rules on made-up data ---------------------------------------------------------------------------------------------


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") if path.suffix == ".gz" else open(path, "w", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ("From: a\nSubject: b\n\nOnly this.", "Only this."),
        ("From: a\n\nIn article <1@x> y writes:\n>quoted\nJD> quoted\n: quoted\nkept > here", "kept > here"),
        ("From: a\n\nSomeone (some@one) wrote:\n| quoted\nfirst\n\nsecond\n-- \nname\nplace", "first\n\nsecond"),
        (
            "From: a\n\none\n--\n" + "\n".join(f"line {i}" for i in range(12)),
            "one\n--\n" + "\n".join(f"line {i}" for i in range(12)),
        ),
        ("From: a\n\n> all quoted\n", ""),
        ("no header at all", ""),
    ],
)
def test_body_of_a_message(message, body):
    assert body_of(message) == body
    assert body_of(message.replace("\n", "\r\n")) == body


def newsgroups(folder):
    """Twelve messages a group; in each, every third is quotes only and pairs share a subject."""
    rows = [
        {
            "id": str(i),
            "label": k,
            "label_name": group,
            "text": f"Subject: {'Re: ' if i % 2 else ''}{group} {i // 2}\nFrom: x\n\n> quote\n"
            + ("" if i % 3 == 0 else f"{i} on {group}"),
        }
        for k, group in enumerate(NEWSGROUPS)
        for i in range(24)
    ]
    for name in ("train", "test"):
        write(folder / f"{name}.jsonl", "\n".join(map(json.dumps, rows)))


def test_messages_of_one_subject_stay_together_and_empty_ones_go(tmp_path):
    newsgroups(tmp_path / "twenty_newsgroups")
    raw = load_benchmark("twenty_newsgroups_raw", root=tmp_path)
    bodies = load_benchmark("twenty_newsgroups", root=tmp_path)
    assert [len(d) for d in raw.values()] == [432, 48, 480]
    assert not set(raw["train"].groups) & set(raw["dev"].groups)
    for split in raw:
        assert bodies[split].ids.tolist() == [i for i in raw[split].ids if int(i.split("/")[1]) % 3]
        assert "quote" not in " ".join(bodies[split].inputs.text)


def test_meld_leaves_out_what_is_no_class(tmp_path):
    emotions = ["joy", "anger", "non-neutral", "neutral", "joy", "fear"]
    rows = [f'{i},"Well, {i}",A,{e},x,{i // 2},{i % 2}' for i, e in enumerate(emotions)]
    for split in ("train", "dev", "test"):
        text = "\n".join(["Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID", *rows])
        write(tmp_path / "meld" / f"{split}_sent_emo.csv", text)
    splits = load_benchmark("meld", root=tmp_path)
    assert [splits["dev"].classes[i] for i in splits["dev"].labels] == ["joy", "anger", "neutral", "joy", "fear"]
    assert splits["dev"].ids.tolist() == ["dev-0-0", "dev-0-1", "dev-1-1", "dev-2-0", "dev-2-1"]
    assert splits["dev"].groups.tolist() == ["dev-0", "dev-0", "dev-1", "dev-2", "dev-2"]


def test_qqp_from_a_folder(tmp_path):
    rows = "".join(f"who is {i // 2}?\twho was {i}?\t{i % 2}\n" for i in range(40))
    for file in ("train.tsv.gz", "validation.tsv"):
        write(tmp_path / "qqp" / file, f"question1\tquestion2\tlabel\n{rows}")
    splits = load_benchmark("qqp", root=tmp_path)
    assert [len(d) for d in splits.values()] == [40, 20, 20]
    assert splits["train"].inputs.pair[3] == "who was 3?"
    assert splits["train"].classes[splits["train"].labels[3]] == "paraphrase"
    assert not set(splits["dev"].groups) & set(splits["test"].groups)


def picture(path, seed):
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3)).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def test_cinic10_from_its_folders(tmp_path):
    pytest.importorskip("PIL")
    first = {}
    for s, split in enumerate(("train", "valid", "test")):
        for k, label in enumerate(CIFAR10):
            first[split, label] = picture(tmp_path / "cinic10" / split / label / f"n0{k}_7.png", seed=100 * s + k)
            picture(tmp_path / "cinic10" / split / label / f"cifar10-train-{k}.png", seed=50 + 100 * s + k)
    splits = load_benchmark("cinic10", root=tmp_path)
    assert [len(d) for d in splits.values()] == [20, 20, 20]
    dev = splits["dev"]
    row = dev.ids.tolist().index("valid/cat/n03_7.png")
    assert np.array_equal(dev.inputs.pixels[row], first["valid", "cat"])
    assert dev.classes[dev.labels[row]] == "cat"
    assert 1 + np.count_nonzero(np.diff(dev.labels)) > 10  # not in the order of classes

    only = load_benchmark("cinic10_imagenet", root=tmp_path)
    assert sorted(only["test"].ids) == [f"test/{label}/n0{k}_7.png" for k, label in enumerate(CIFAR10)]
    assert list(only) == ["test"]
    shutil.rmtree(tmp_path / "cinic10" / "valid")
    with pytest.raises(InputError, match="valid"):
        load_benchmark("cinic10", root=tmp_path)


def test_cifar_from_sheets_and_the_choices_of_people(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    pixels, labels = {}, {}
    (tmp_path / "cifar10").mkdir()
    for split, count in (("train", 200), ("test", 100)):
        pixels[split] = rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        labels[f"{split}_labels"] = rng.permutation(np.arange(count) % 10).astype(np.uint8)
        sheet = pixels[split].reshape(-1, 100, 32, 32, 3).swapaxes(1, 2).reshape(-1, 3200, 3)
        image.fromarray(sheet).save(tmp_path / "cifar10" / f"{split}_some.webp", lossless=True)
    names = np.array(CIFAR10)[::-1]  # names, not positions, say what a label means
    np.savez(tmp_path / "cifar10" / "labels.npz", label_names=names, **labels)
    splits = load_benchmark("cifar10", root=tmp_path)
    assert [len(d) for d in splits.values()] == [180, 20, 100]
    assert np.array_equal(splits["test"].inputs.pixels, pixels["test"])
    assert splits["test"].labels.tolist() == (9 - labels["test_labels"]).tolist()

    (tmp_path / "cifar10h").mkdir()
    counts = np.ones((100, 10), dtype=np.uint8)
    counts[:, 3] = 31
    np.savez(tmp_path / "cifar10h" / "counts.npz", counts=counts)
    human = load_benchmark("cifar10h", root=tmp_path)["test"]
    assert human.ids.tolist() == splits["test"].ids.tolist()
    assert human.labels.tolist() == splits["test"].labels.tolist()
    assert human.label_probs[0].tolist() == [0.025] * 3 + [0.775] + [0.025] * 6


@pytest.mark.parametrize(("name", "classes"), [("cifar10_c", CIFAR10), ("cifar100_c", CIFAR100)])
def test_corrupted_images_from_arrays(tmp_path, name, classes):
    folder = tmp_path / name
    folder.mkdir()
    rng = np.random.default_rng(0)
    labels = np.tile([2, 0, len(classes) - 1], 5).astype(np.uint8)  # 3 images in 5 severities
    np.save(folder / "labels.npy", labels)
    with pytest.raises(InputError, match="no corruption"):
        load_benchmark(name, root=tmp_path)
    pixels = {c: rng.integers(0, 256, (15, 32, 32, 3)).astype(np.uint8) for c in ("frost", "snow")}
    for corruption, values in pixels.items():
        np.save(folder / f"{corruption}.npy", values)
    data = load_benchmark(name, root=tmp_path)["test"]
    assert (len(data), data.ids[0], data.ids[16], data.ids[29]) == (30, "frost-1-00000", "snow-1-00001", "snow-5-00002")
    assert np.array_equal(data.inputs.pixels[16], pixels["snow"][1])
    assert data.labels.tolist() == np.tile(labels, 2).tolist()
    assert data.groups[[1, 4, 16]].tolist() == ["00001"] * 3

    np.save(folder / "snow.npy", pixels["snow"][:10])
    with pytest.raises(InputError, match="15 labels"):
        load_benchmark(name, root=tmp_path)
    np.save(folder / "snow.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match=r"snow\.npy.*no \.npy of numbers"):
        load_benchmark(name, root=tmp_path)


# ---- VADER: a table and two archives must give the same ----------------------------------------------------------------


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


# ---- the hub, without a network ----------------------------------------------------------------------------------------


class Fake:
    """As much of a table of ``datasets`` as is read."""

    def __init__(self, columns, **features):
        self.columns, self.column_names = columns, list(columns)
        self.features = {c: features.get(c) for c in columns}

    def __getitem__(self, name):
        return self.columns[name]


@pytest.fixture
def hub(monkeypatch):
    held, asked = {}, []

    def load_dataset(name, config, split):
        asked.append((name, config, split))
        return held[split]

    monkeypatch.setattr(sources, "_import_datasets", lambda: SimpleNamespace(load_dataset=load_dataset))
    return held, asked


def test_hub_rows_without_label_are_left_out(hub):
    held, asked = hub
    names = SimpleNamespace(names=["entailment", "neutral", "contradiction"])
    for split in ("train", "validation", "test"):
        columns = {"premise": list("abcd"), "hypothesis": list("wxyz"), "label": [2, -1, 0, 1]}
        held[split] = Fake(columns, label=names)
    splits = load_benchmark("snli", hub=True)
    assert asked == [("stanfordnlp/snli", "plain_text", s) for s in held]
    assert splits["dev"].labels.tolist() == [2, 0, 1]
    assert splits["dev"].inputs.text.tolist() == ["a", "c", "d"]
    assert (splits["dev"].role, splits["dev"].classes) == ("dev", BENCHMARKS["snli"].classes)


def test_hub_names_become_ours_and_validation_is_halved(hub):
    held, _ = hub
    names = SimpleNamespace(names=["not_duplicate", "duplicate"])
    for split in ("train", "validation"):
        questions = [f"{split} {i} " for i in range(20)]
        held[split] = Fake({"question1": questions, "question2": questions, "label": [0, 1] * 10}, label=names)
    splits = load_benchmark("qqp", hub=True)
    assert [len(d) for d in splits.values()] == [20, 10, 10]
    assert [splits["train"].classes[i] for i in splits["train"].labels[:2]] == ["different", "paraphrase"]
    assert splits["train"].inputs.text[0] == "train 0"


def test_hub_choices_and_images(hub):
    held, _ = hub
    endings = {f"ending{k}": [f"{k} of {i}" for i in range(8)] for k in range(4)}
    for split in ("train", "validation"):
        labels = [i % 4 for i in range(8)]
        held[split] = Fake({"startphrase": [f"{split} {i}" for i in range(8)], **endings, "label": labels},
                           label=SimpleNamespace(names=list("0123")))  # fmt: skip
    splits = load_benchmark("swag", hub=True)
    assert splits["train"].inputs.endings[5].tolist() == [f"{k} of 5" for k in range(4)]
    assert [len(d) for d in splits.values()] == [8, 4, 4]

    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3)).astype(np.uint8)
    feature = type("Image", (), {})()
    for split in ("train", "test"):
        columns = {"img": [image.fromarray(p) for p in pixels], "label": [9, 0] * 10}
        held[split] = Fake(columns, img=feature, label=SimpleNamespace(names=list(CIFAR10)))
    splits = load_benchmark("cifar10", hub=True)
    assert [len(d) for d in splits.values()] == [18, 2, 20]
    assert np.array_equal(splits["test"].inputs.pixels, pixels)
    assert splits["test"].labels.tolist() == [9, 0] * 10


# ---- errors and summaries ----------------------------------------------------------------------------------------------


def test_unknown_names_bring_near_ones():
    with pytest.raises(InputError, match=r"did you mean .*goemotions_ekman"):
        load_benchmark("goemotion")
    with pytest.raises(InputError, match=r"docs/benchmarks\.md"):
        load_benchmark("?")


def test_without_a_folder_the_error_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.delenv("DISTILCAL_DATA", raising=False)
    with pytest.raises(InputError, match=r"DISTILCAL_DATA.*sst2/.*docs/benchmarks\.md.*nyu-mll/glue/sst2.*hub=True"):
        load_benchmark("sst2")
    monkeypatch.setenv("DISTILCAL_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"meld.*DISTILCAL_DATA.*docs/benchmarks\.md.*declare-lab/MELD"):
        load_benchmark("meld")
    with pytest.raises(InputError, match="not read from the hub"):
        load_benchmark("vader_movie", hub=True)


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
    found = summary("mrpc", root=tmp_path)
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
    found = summary("epitome_explorations", root=tmp_path)
    assert found.examples == ()
    assert found.sizes == {"train": 30, "dev": 2, "test": 8}
    assert sum(c["some"] for c in found.counts.values()) == 26
    assert found.groups == found.sizes
    assert all(BENCHMARKS[n].sensitive for n in BENCHMARKS if n.startswith("epitome"))


def test_summary_of_votes(vader_folders):
    assert summary("vader_amazon", root=vader_folders / "table").soft_labels


def test_a_benchmark_of_ones_own():
    entry = BENCHMARKS["mrpc"]
    own = Benchmark("own", "a task", "text pair", entry.classes, "", "own", "mine", "none", "a note", reader=entry.reader)
    assert own.ood == ()
    with pytest.raises(InputError, match="own is not read from the hub"):
        own.read_hub()
