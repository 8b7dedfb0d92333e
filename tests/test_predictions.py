"""Predictions: what they accept, what they refuse, and the views of the same rows."""

import numpy as np
import pytest
from samples import make

from distilcal import InputError, Predictions, ensemble, join
from distilcal.calibrate import fit_temperature
from distilcal.metrics import ece


def test_softmax_agrees_with_scipy_for_few_and_many_classes():
    from scipy.special import log_softmax

    for classes in (2, 5, 64, 65, 130):
        p = make(1500, classes)
        expected = log_softmax(p.logits, axis=1)
        np.testing.assert_allclose(p.probs, np.exp(expected), rtol=1e-12)
        np.testing.assert_allclose(p.row_nll, -expected[np.arange(1500), p.labels], rtol=1e-12)
        np.testing.assert_allclose(p.row_entropy, -(np.exp(expected) * expected).sum(axis=1), rtol=1e-10)
        np.testing.assert_array_equal(p.predicted, p.logits.argmax(axis=1))
        np.testing.assert_array_equal(p.confidence, p.probs.max(axis=1))


def test_the_first_class_wins_a_tie():
    for classes in (3, 70):
        logits = np.zeros((4, classes))
        assert Predictions.from_logits(logits, [0] * 4).predicted.tolist() == [0] * 4
        logits[:, 1:3] = 1.0
        assert Predictions.from_logits(logits, [0] * 4).predicted.tolist() == [1] * 4


def test_half_precision_is_raised_before_the_softmax():
    logits = np.array([[60000.0, 59000.0]], np.float16)
    p = Predictions.from_logits(logits, [0])
    assert p.logits.dtype == np.float32
    assert p.probs.tolist() == [[1.0, 0.0]]


def test_given_probabilities_are_kept_to_the_digit_and_zeros_stay_zeros():
    given = np.array([[0.7, 0.2, 0.1], [0.6, 0.4, 0.0]])
    p = Predictions.from_probs(given, [0, 2])
    np.testing.assert_array_equal(p.probs, given)
    assert p.row_nll[1] == np.inf
    assert p.row_entropy[1] == pytest.approx(-(0.6 * np.log(0.6) + 0.4 * np.log(0.4)))
    rounded = Predictions.from_probs([[0.333, 0.333, 0.333]], [0])
    assert rounded.probs.sum() == pytest.approx(1.0, abs=1e-15)


@pytest.mark.parametrize("confidence", [[0.9, 0.5], [0.9, 0.34], [0.99, 0.02], [1.0, 0.5], [0.001, 0.3]])
def test_confidences_are_the_top_probability(confidence):
    p = Predictions.from_confidences(confidence, [1, 0])
    np.testing.assert_allclose(p.confidence, confidence, rtol=1e-15)
    assert p.correct.tolist() == [True, False]
    np.testing.assert_allclose(p.probs.sum(axis=1), 1.0)


def test_the_callers_arrays_are_neither_locked_nor_changed():
    logits = np.ones((3, 2))
    p = Predictions.from_logits(logits, [0, 1, 0])
    logits[0, 0] = 5
    with pytest.raises(ValueError, match="read-only"):
        p.logits[0, 0] = 3
    with pytest.raises(AttributeError):
        p.name = "other"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([[1.0, np.nan]], [0]), "nan, row|a logit is nan"),
        (([[1.0, np.inf]], [0]), "a logit is inf"),
        (([[1.0, -np.inf]], [0]), "or probabilities where"),
        (([[1.0], [2.0]], [0, 0]), "only one class"),
        ((np.zeros((0, 3)), []), "no rows"),
        (([[1.0, 2.0], [1.0]], [0, 0]), "different lengths"),
        (([[1.0, 2.0]], [2]), "label 2 is not between 0 and 1"),
        (([[1.0, 2.0]], [-2]), "label -2"),
        (([[1.0, 2.0]], [0, 1]), "2 labels for 1 rows"),
        (([[1.0, 2.0]], [0.5]), "label 0.5 is not an index"),
        (([["a", "b"]], [0]), "not numbers"),
        (([1.0, 2.0], [0]), "not a table"),
    ],
)
def test_bad_logits_and_labels_are_refused(arguments, said):
    with pytest.raises(InputError, match=said):
        Predictions.from_logits(*arguments)


@pytest.mark.parametrize(
    ("probs", "said"),
    [
        ([[0.5, 0.4]], r"sum to 0.9, not to 1 within 0.001"),
        ([[50.0, 50.0]], "divided by 100"),
        ([[-0.1, 1.1]], "not a probability"),
        ([[np.nan, 1.0]], "not a probability"),
    ],
)
def test_bad_probabilities_are_refused(probs, said):
    good = [0.5, 0.5]
    with pytest.raises(InputError, match=said) as error:
        Predictions.from_probs([good, *probs], [0, 0])
    assert error.value.row == 1


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ({"classes": ["a"]}, "1 class names for 2 columns"),
        ({"classes": ["a", "a"]}, "duplicate class name 'a'"),
        ({"ids": ["x", "x"]}, "duplicate id 'x'"),
        ({"ids": ["x"]}, "1 ids for 2 rows"),
        ({"label_probs": [[0.5, 0.6], [0.5, 0.5]]}, "sum to 1.1"),
        ({"label_probs": [[0.5, 0.5]]}, "shape"),
    ],
)
def test_bad_names_are_refused(names, said):
    with pytest.raises(InputError, match=said):
        Predictions.from_logits([[1.0, 2.0], [2.0, 1.0]], [0, 1], **names)


@pytest.mark.parametrize(
    ("confidence", "correct", "said"),
    [
        ([1.2], [1], "not in"),
        ([0.0], [1], "not in"),
        ([np.nan], [1], "not in"),
        ([0.5], [2], "neither 0 nor 1"),
        ([], [], "no rows"),
    ],
)
def test_bad_confidences_are_refused(confidence, correct, said):
    with pytest.raises(InputError, match=said):
        Predictions.from_confidences(confidence, correct)


def test_labels_by_name_by_index_and_digits_that_are_names():
    logits = [[1.0, 0.0, 0.0]] * 2
    by_name = Predictions.from_logits(logits, ["dog", "cat"], classes=["cat", "dog", "cow"])
    assert by_name.labels.tolist() == [1, 0]
    by_index = Predictions.from_logits(logits, ["1", "0"], classes=["cat", "dog", "cow"])
    assert by_index.labels.tolist() == [1, 0]
    digits = Predictions.from_logits(logits, ["2", "1"], classes=["2", "1", "0"])
    assert digits.labels.tolist() == [0, 1]
    with pytest.raises(InputError, match="label 'bird' is not a class name"):
        Predictions.from_logits(logits, ["dog", "bird"], classes=["cat", "dog", "cow"])


def test_numbers_are_indices_beside_missing_labels_too():
    logits, classes = np.zeros((3, 3)), ("1", "2", "3")
    assert Predictions(logits, [1, 2, 1], classes=classes).labels.tolist() == [1, 2, 1]
    assert Predictions(logits, [1, 2, None], classes=classes).labels.tolist() == [1, 2, -1]
    assert Predictions(logits, ["1", "2", None], classes=classes).labels.tolist() == [0, 1, -1]


def test_select_by_index_mask_and_id(predictions):
    by_id = predictions.select(["row5", "row2"])
    by_index = predictions.select([5, 2])
    np.testing.assert_array_equal(by_id.logits, by_index.logits)
    mask = np.zeros(53, bool)
    mask[[2, 5]] = True
    assert predictions.select(mask).ids.tolist() == ["row2", "row5"]
    with pytest.raises(InputError, match="no row with id 'row99'"):
        predictions.select(["row99"])
    with pytest.raises(InputError, match="mask"):
        predictions.select(mask[:5])


def test_split_is_seeded_stratified_disjoint_and_exact():
    p = make(400, 4)
    a, b = p.split(0.3, seed=1)
    assert len(a) == 120
    assert len(b) == 280
    assert not set(a.ids) & set(b.ids)
    counts, taken = np.bincount(p.labels), np.bincount(a.labels)
    assert np.abs(taken - 0.3 * counts).max() <= 1
    assert a.ids.tolist() == p.split(0.3, seed=1)[0].ids.tolist()
    assert a.ids.tolist() != p.split(0.3, seed=2)[0].ids.tolist()
    assert len(p.split(0.5, seed=0, stratified=False)[0]) == 200
    with pytest.raises(InputError):
        p.split(1.0, seed=0)


def test_reorder_classes_by_name(predictions):
    back = predictions.reorder_classes(["4", "2", "0", "1", "3"]).reorder_classes(predictions.classes)
    np.testing.assert_array_equal(back.logits, predictions.logits)
    np.testing.assert_array_equal(back.labels, predictions.labels)
    moved = predictions.reorder_classes(["4", "2", "0", "1", "3"])
    names = [moved.classes[y] for y in moved.labels]
    assert names == [predictions.classes[y] for y in predictions.labels]
    with pytest.raises(InputError, match="same names"):
        predictions.reorder_classes(["a", "b", "c", "d", "e"])


def test_join_by_id_and_by_position(predictions):
    shuffled = predictions.select(np.random.default_rng(0).permutation(53)[:20])
    a, b = join(predictions, shuffled)
    assert a.ids.tolist() == b.ids.tolist()
    assert len(a) == 20
    np.testing.assert_array_equal(a.logits, b.logits)
    plain = Predictions.from_logits(predictions.logits, predictions.labels)
    join(plain, plain)
    with pytest.raises(InputError, match="only one"):
        join(plain, predictions)
    with pytest.raises(InputError, match="no ids to match"):
        join(plain, plain.select([0, 1]))
    with pytest.raises(InputError, match="share no id"):
        join(predictions, make(53, 5).rename("x").select([0]).__class__.from_logits(predictions.logits[:1], [0], ids=["other"]))
    other = Predictions.from_logits(predictions.logits, (predictions.labels + 1) % 5, ids=predictions.ids)
    with pytest.raises(InputError, match="disagree on the label of id 'row0'"):
        join(predictions, other)


def test_ensemble_is_the_mean_in_probability(predictions):
    other = make(53, 5, seed=0, scale=1.0)
    other = Predictions.from_logits(other.logits, predictions.labels, ids=predictions.ids).reorder_classes(list("43210"))
    both = ensemble([predictions, other.select(np.arange(52, -1, -1))])
    expected = (predictions.probs + other.reorder_classes(predictions.classes).probs) / 2
    np.testing.assert_allclose(both.probs, expected, atol=1e-15)
    assert both.name == "ensemble"


def test_nothing_in_predictions_can_be_written():
    for p in (make(), Predictions.from_probs([[0.7, 0.3]], [0])):
        for array in (p.logits, p.labels, p.probs):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


def test_split_gives_odd_rows_to_either_side():
    p = Predictions.from_logits(np.eye(6), range(6), ids=list("abcdef"))
    firsts = {tuple(p.split(0.5, seed=s)[0].ids.tolist()) for s in range(20)}
    assert len(firsts) > 1
    assert all(len(f) == 3 for f in firsts)


def test_small_mistakes_are_said(predictions):
    for mistake in (
        lambda: predictions.select([]),
        lambda: Predictions.from_logits([[1.0, 2.0, 3.0]] * 3, ["1", "2", "0"], classes=["1", "2", "3"]),
        lambda: ensemble([Predictions.from_confidences([0.9], [1])]),
    ):
        with pytest.raises(InputError):
            mistake()


def test_names_may_be_left_out_or_none():
    for names in ({}, {"ids": None, "classes": None, "label_probs": None}):
        assert Predictions([[1.0, 2.0]], [1], **names).classes == ("0", "1")


def test_class_names_may_be_an_array_and_are_no_text():
    logits = [[1.0, 2.0, 3.0]]
    assert Predictions.from_logits(logits, classes=np.array(["x", "y", "z"])).classes == ("x", "y", "z")
    assert Predictions.from_logits(logits, classes=np.array([])).classes == ("0", "1", "2")
    for names in ({"x", "y", "z"}, {0: "x", 1: "y", 2: "z"}):  # no order, and names that are not the keys
        with pytest.raises(InputError, match=f"the {type(names).__name__} .* for class names; give a list"):
            Predictions([[1.0, 2.0, 3.0]], [0], classes=names)
    with pytest.raises(InputError, match="the text 'xyz' for class names; give a list"):
        Predictions.from_logits(logits, classes="xyz")


@pytest.mark.parametrize("part", ["logits", "labels", "ids", "label_probs"])
def test_masked_values_are_refused_and_not_replaced_by_what_the_mask_hides(part):
    parts = {"logits": np.eye(3), "labels": np.arange(3), "ids": np.array(["x", "y", "z"]), "label_probs": np.eye(3)}
    whole = {**parts, part: np.ma.array(parts[part])}
    assert len(Predictions(**whole)) == 3  # nothing is masked
    whole[part][1] = np.ma.masked
    with pytest.raises(InputError, match="masked") as error:
        Predictions(**whole)
    assert error.value.row == 1


def test_tensors_with_a_gradient_and_in_bfloat16_are_read():
    torch = pytest.importorskip("torch")
    logits = torch.tensor([[1.0, -1.0], [0.5, 0.25]], requires_grad=True)
    for given in (logits, logits.bfloat16()):
        predictions = Predictions.from_logits(given, torch.tensor([0, 1]))
        assert predictions.logits.tolist() == logits.tolist()
        assert predictions.labels.tolist() == [0, 1]


def test_masked_confidences_outcomes_and_arrays_of_metrics_are_refused():
    hidden = np.ma.array([0.9, 0.8], mask=[False, True])
    for confidence, correct in ((hidden, [1, 0]), ([0.9, 0.8], np.ma.array([1, 0], mask=[True, False]))):
        with pytest.raises(InputError, match="masked"):
            Predictions.from_confidences(confidence, correct)
    probs, labels = np.eye(2), np.array([0, 1])
    for arrays in ((np.ma.array(probs, mask=probs > 0), labels), (probs, np.ma.array(labels, mask=[True, False]))):
        with pytest.raises(InputError, match="row 0 .* masked"):
            ece(*arrays)


@pytest.mark.parametrize("classes", [("True", "False"), ("False", "True"), ("true", "false"), ("FALSE", "TRUE")])
def test_true_and_false_are_names_where_classes_are_called_so(classes):
    logits, yes = np.zeros((3, 2)), [name.casefold() for name in classes].index("true")
    for labels in ([True, False, True], np.array([True, False, True]), np.array([True, False, True], dtype=object)):
        assert Predictions(logits, labels, classes=classes).labels.tolist() == [yes, 1 - yes, yes]
    assert Predictions(logits, [True, None, False], classes=classes).labels.tolist() == [yes, -1, 1 - yes]
    assert Predictions(logits, [1, 0, 1], classes=classes).labels.tolist() == [1, 0, 1]
    assert Predictions(logits, [True, False, True], classes=("ham", "spam")).labels.tolist() == [1, 0, 1]


@pytest.mark.parametrize("kind", ["S", "O"])
def test_bytes_are_utf8_or_refused(kind):
    def encoded(*names, encoding="utf-8"):
        return np.array([name.encode(encoding) for name in names], dtype=kind)

    logits = np.zeros((2, 2))
    p = Predictions(logits, encoded("é", "b"), ids=encoded("x", "ü"), classes=encoded("b", "é"))
    assert (p.classes, p.labels.tolist(), p.ids.tolist()) == (("b", "é"), [1, 0], ["x", "ü"])
    latin = encoded("b", "é", encoding="latin-1")
    for parts in ({"labels": latin}, {"ids": latin}, {"classes": latin}):
        with pytest.raises(InputError, match="is not UTF-8; decode it"):
            Predictions(logits, **{"classes": ("b", "é"), **parts})


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_missing_ids_and_names_are_refused_and_not_called_none_or_nan(missing):
    logits = np.zeros((2, 2))
    for parts in ({"ids": ["x", missing]}, {"classes": ["x", missing]}):
        with pytest.raises(InputError, match=f"{missing} is a missing value"):
            Predictions(logits, **parts)
    labels = np.array(["a", missing], dtype=object)
    if missing is None:
        assert Predictions(logits, labels, classes=("a", "None")).labels.tolist() == [0, -1]
        return
    with pytest.raises(InputError, match="label nan is a missing value") as error:
        Predictions(logits, labels, classes=("a", "nan"))
    assert error.value.row == 1


def test_columns_of_data_frames_are_matched_by_name():
    pandas = pytest.importorskip("pandas")
    rows = np.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    table, turned = pandas.DataFrame(rows, columns=["cat", "dog", "cow"]), ["cow", "dog", "cat"]
    for build in (Predictions, Predictions.from_logits, Predictions.from_probs):
        named = build(table, ["cat", "cow"])
        assert named.classes == ("cat", "dog", "cow")
        assert named.labels.tolist() == [0, 2]
        p = build(table, ["cat", "cow"], classes=turned, label_probs=table)
        expected = build(rows[:, ::-1], [2, 0], classes=turned, label_probs=rows[:, ::-1])
        np.testing.assert_array_equal(p.probs, expected.probs)
        np.testing.assert_array_equal(p.label_probs, expected.label_probs)
        assert p.labels.tolist() == [2, 0]
        counted = build(pandas.DataFrame(rows), [0, 2], classes=turned)
        np.testing.assert_array_equal(counted.probs, build(rows, [0, 2]).probs)
        with pytest.raises(InputError, match="the columns of the .* are 'cat', 'dog', 'cow', the classes 'a', 'b', 'c'"):
            build(table, classes=["a", "b", "c"])


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, np.inf, np.nan])
def test_a_tolerance_that_lets_rows_of_zeros_pass_is_refused(tolerance):
    with pytest.raises(InputError, match="tolerance .* is not between 0 and 1"):
        Predictions.from_probs([[0.0, 0.0]], tolerance=tolerance)


def test_a_table_of_labels_or_ids_is_refused_with_its_shape():
    for part in ({"labels": [[0], [1]]}, {"ids": [["x"], ["y"]]}):
        with pytest.raises(InputError, match=r"of shape \(2, 1\) for 2 rows; give one"):
            Predictions(np.zeros((2, 2)), **part)


def test_a_number_may_be_the_name_of_a_set():
    p = Predictions([[1.0, 0.0], [0.0, 1.0]], [0, 0], name=3)
    assert p.name == "3"
    assert fit_temperature(p).fit.rows == 2


def test_confidences_and_class_probabilities_are_not_joined():
    whole = Predictions.from_probs([[0.9, 0.1]], [0], name="whole")
    top = Predictions.from_confidences([0.9], [1], name="top")
    for pair in ((whole, top), (top, whole)):
        with pytest.raises(InputError, match="'top' holds confidences only, 'whole' class probabilities; give both in"):
            join(*pair)


def test_class_names_that_look_the_same_are_told_apart():
    composed, apart = (Predictions([[1.0, 0.0]], classes=[name, "b"], name="dev") for name in ("\u00e9", "e\u0301"))
    with pytest.raises(InputError, match=r"look the same: 'e\\u0301', not '\\xe9'; .* in one form of Unicode"):
        join(composed, apart)


def test_a_nul_inside_an_id_is_refused_in_arrays_too():
    assert Predictions(np.zeros((2, 2)), ids=np.array(["x", "long"])).ids.tolist() == ["x", "long"]
    for ids in (["a\0b", "c"], np.array(["a\0b", "c"]), np.array(["a\0b", "c"], dtype=object)):
        with pytest.raises(InputError, match="row 0 .*: id 'a.x00b' holds a NUL character"):
            Predictions(np.zeros((2, 2)), ids=ids)


def test_the_cross_entropy_of_votes_does_not_depend_on_offsets_or_on_the_label():
    logits = np.array([[2.0, 1.0, -40.0], [0.5, 0.25, 0.0]])
    votes = np.array([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    expected = -(votes * np.log(Predictions(logits).probs)).sum(axis=1)
    for shift in (0.0, 2.0**40):
        p = Predictions(logits + shift, [0, 1], label_probs=votes)
        np.testing.assert_allclose(p.row_vote_nll, expected, rtol=1e-12)
    logits[0, 2] = -1e30  # a class that was ruled out, and is the label all the same
    np.testing.assert_allclose(Predictions(logits, [2, 1], label_probs=votes).row_vote_nll, expected, rtol=1e-12)


def test_ids_that_are_nan_are_refused_in_arrays_of_numbers_too():
    assert Predictions(np.zeros((2, 2)), ids=np.array([1.5, 2.0])).ids.tolist() == ["1.5", "2.0"]
    with pytest.raises(InputError, match="row 1 .*: id nan is a missing value; give it a name, or drop it"):
        Predictions(np.zeros((2, 2)), ids=np.array([1.5, np.nan]))
