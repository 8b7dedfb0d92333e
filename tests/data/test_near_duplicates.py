"""Near-duplicates: what counts as one, that all of them are found at linear cost, and where they are reported."""

import numpy as np
import pytest

from distilcal.data import Dataset, Vectors, choices, texts
from distilcal.data.near_duplicates import near_duplicates, normalise
from distilcal.data.splits import NearOverlap, Splits

LONG = "the plot is thin but the actors save it from being a complete waste of an evening"


def found(first, second):
    rows, matches = near_duplicates(Dataset(texts(first)), Dataset(texts(second)))
    return list(zip(rows.tolist(), matches.tolist(), strict=True))


@pytest.mark.parametrize(
    "other",
    [
        "The plot is thin, but the actors save it from being a complete waste of an evening!!",
        LONG.replace("thin", "slim"),
        LONG + " again",
        LONG.replace("thin", "thım"),
    ],
)
def test_punctuation_and_a_changed_word_make_near_duplicates(other):
    assert found(["something else entirely and of no interest", LONG], [other]) == [(0, 1)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (LONG, LONG.upper()),  # an exact one: overlap reports it
        (LONG, "the plot is thick and the actors were a waste of a good evening"),
        ("good", "bad"),
        ("not good", "so good"),
        ("really not good", "really good"),
        ("5 + 7 = 12", "5 + 8 = 13"),
        ("", ""),
        ("?", "!"),
        ("👍", "👎"),
    ],
)
def test_what_is_no_near_duplicate(one, other):
    assert found([one], [other]) == []


def test_short_texts_have_to_be_equal_once_normalised():
    assert found(["Not good!", "bad"], ["bad.", "not good", "not goood"]) == [(0, 1), (1, 0)]


def test_digits_count_in_short_texts_only():
    assert normalise("Room 12 on floor three, please") == "room 00 on floor three please"
    assert normalise("Room 12") == "room 12"
    assert found(["your order 123 was shipped today"], ["Your order 987 was shipped today"]) == [(0, 0)]


def test_both_texts_of_a_pair_have_to_be_alike():
    hypotheses = ["a man is asleep", "a dog barks at the moon"]
    train = Dataset(texts([LONG], hypotheses[:1]))
    test = Dataset(texts([LONG, LONG + "!"], [hypotheses[1], "A man is asleep."]))
    rows, _ = near_duplicates(train, test)
    assert rows.tolist() == [1]
    chosen = [
        Dataset(choices([LONG], [[end, "nothing happens in the end"]])) for end in ("he sleeps at home", "he sleeps at home.")
    ]
    assert near_duplicates(*chosen)[0].tolist() == [0]


def test_vectors_have_none():
    vectors = Dataset(Vectors(np.eye(3, dtype=np.float32)))
    assert len(near_duplicates(vectors, vectors)[0]) == 0


def test_nearly_all_pairs_are_found_and_no_other():
    rng = np.random.default_rng(0)
    words = np.array(["".join(rng.choice(list("abcdefgh"), 6)) for _ in range(500)])
    first = [" ".join(rng.choice(words, 20)) for _ in range(2000)]
    second = [" ".join(rng.choice(words, 20)) for _ in range(1000)]
    for i in range(0, 600, 2):
        second[i] = first[3 * i].replace(first[3 * i].split()[7], "different", 1)
    expected = {(i, 3 * i) for i in range(0, 600, 2)}
    pairs = set(found(first, second))
    assert pairs <= expected
    assert len(pairs) > 0.95 * len(expected)


def test_many_repetitions_cost_no_more_than_other_texts():
    pairs = found([f"{LONG} {i}" for i in range(3000)], [f"{LONG}, {i}" for i in range(3000)])
    assert len(pairs) == 3000


def test_splits_name_the_first_pairs():
    def data(name, words):
        labels = np.arange(len(words)) % 2
        return Dataset(texts(words), labels, ("a", "b"), ids=[f"{name}{i}" for i in range(len(words))], name=name)

    train = data("train", [LONG, "one two three four five six", "another text of no interest", "a fourth text, of five words"])
    dev = data("dev", ["nothing to see here at all", "nor is there anything here"])
    test = data(
        "test",
        [LONG + "!", LONG, "A fourth text of five words", "One, two, three, four, five, six", "Nothing to see here at all?"],
    )
    near = Splits(train, dev, test).near_overlaps()
    assert near == [
        NearOverlap("train", "test", 3, 0.6, (("train0", "test0"), ("train3", "test2"), ("train1", "test3"))),
        NearOverlap("dev", "test", 1, 0.2, (("dev0", "test4"),)),
    ]
    assert [overlap.rows for overlap in Splits(train, dev, test).overlaps()] == [1]


def test_texts_without_a_run_of_five_characters_are_compared_without_a_warning():
    rows, matches = near_duplicates(
        Dataset(texts(["很好电影", "不好电影"])), Dataset(texts(["很好电视", "很好电影。", "很坏电影"]))
    )
    assert (rows.tolist(), matches.tolist()) == ([1], [0])
    one, other = Dataset(texts(["一二三四", "一二三四五六七八九十甲乙丙丁"])), Dataset(texts(["四三二一"]))
    assert near_duplicates(one, other)[0].tolist() == []
