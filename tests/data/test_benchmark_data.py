"""Benchmarks from real files: the counts their sources state, and splits that do not leak."""

import gzip
import json
import re
from collections import Counter

import numpy as np
import pytest
from real_benchmarks import DATA, loaded, read

from distilcal.data import Choices, Images, Texts, overlap
from distilcal.data.catalogue import BENCHMARKS, load_benchmark

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
