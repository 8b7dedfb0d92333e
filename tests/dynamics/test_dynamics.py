"""Training dynamics: what the cartography and AUM tools compute, whoever feeds the recorder and in whatever pieces."""

import numpy as np
import pytest
from golden_cases import cases

from distilcal.dynamics import Recorder, aum_halves, likely_mislabelled, load_dynamics, regions, saliency
from distilcal.errors import InputError

MAPS = {k: v for k, v in cases("data_maps.json").items() if k.startswith("data_map:")}
AUM = {k: v for k, v in cases("aum_saliency_mixup.json").items() if k.startswith("aum:")}
MIXES = {k: v for k, v in cases("aum_saliency_mixup.json").items() if not k.startswith("aum:")}


def recorded(epochs, labels, classes, *, dtype=np.float64, batch=4, **named):
    """A recorder that saw the logits (E, N, K) in batches."""
    recorder = Recorder([f"r{i}" for i in range(len(labels))], labels, [str(c) for c in range(classes)], dtype=dtype, **named)
    for logits in epochs:
        for i in range(0, len(labels), batch):
            rows = np.arange(i, min(i + batch, len(labels)))
            recorder.record(rows, logits[rows])
        recorder.end_epoch()
    return recorder


def random_epochs(n=37, classes=4, epochs=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(epochs, n, classes)) * 2, rng.integers(0, classes, n)


@pytest.mark.parametrize("case", MAPS.values(), ids=MAPS)
def test_data_maps_are_those_of_the_cartography_tool(case):
    logits = np.array(case["inputs"]["logits_sample_epoch_class"]).transpose(1, 0, 2)
    labels, expected = np.array(case["inputs"]["labels"]), case["expected"]
    found = recorded(logits, labels, logits.shape[2]).dynamics()
    for name in ("confidence", "variability", "correctness", "threshold_closeness", "variability_ci"):
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-9, atol=1e-11, err_msg=name)
    np.testing.assert_array_equal(found.forgetting, expected["forgetfulness"])
    chosen, top = regions(found), expected["top33"]
    assert len(chosen["easy"]) == top["count"]
    assert chosen["easy"].tolist() == top["easy_by_confidence_desc"]
    assert chosen["ambiguous"].tolist() == top["ambiguous_by_variability_desc"]
    assert chosen["hard"].tolist() == top["hard_by_confidence_asc"]


@pytest.mark.parametrize("case", AUM.values(), ids=AUM)
def test_aum_is_that_of_its_authors(case):
    logits, labels = np.array(case["inputs"]["logits_per_epoch"]), np.array(case["inputs"]["labels"])
    found = recorded(logits, labels, logits.shape[2]).dynamics()
    np.testing.assert_allclose(found.aum, case["expected"]["aum"], rtol=1e-9)
    high = aum_halves(found)
    assert np.flatnonzero(high).tolist() == case["expected"]["high_set"]
    assert np.flatnonzero(~high).tolist() == case["expected"]["low_set"]


@pytest.mark.parametrize("case", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("side", ["high", "low"])
def test_saliency_is_the_gradient_of_the_cross_entropy(case, side):
    found = saliency(np.array(case["inputs"][f"logits_{side}"]), np.array(case["inputs"][f"labels_{side}"]))
    np.testing.assert_allclose(found, case["expected"][f"current_saliency_{side}"], rtol=1e-9, atol=1e-12)


def test_saliency_keeps_its_direction_where_the_model_is_certain():
    found = saliency(np.array([[60.0, 1.0, 0.0]], dtype=np.float32), np.array([0]))
    assert found[0, 0] > 0
    assert found[0, 1] / found[0, 0] == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_statistics_are_those_of_all_epochs_at_once(dtype):
    epochs, labels = random_epochs()
    found = recorded(epochs, labels, 4, dtype=dtype).dynamics()
    probs = np.exp(epochs) / np.exp(epochs).sum(axis=2, keepdims=True)
    true = probs[:, np.arange(37), labels]  # (E, N)
    right = epochs.argmax(axis=2) == labels
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found.confidence, true.mean(axis=0), rtol=tolerance)
    np.testing.assert_allclose(found.variability, true.std(axis=0), rtol=10 * tolerance, atol=tolerance)
    np.testing.assert_array_equal(found.correctness, right.sum(axis=0))
    np.testing.assert_array_equal(found.forgotten, (right[:-1] & ~right[1:]).sum(axis=0))
    np.testing.assert_allclose(found.logits, epochs[-1], rtol=tolerance)
    assert (found.epochs == 5).all()


def test_single_precision_does_not_lose_a_small_variability():
    rng = np.random.default_rng(0)
    epochs = 6 + 1e-3 * rng.normal(size=(50, 3, 2)) * np.array([1.0, 0.0]) - np.array([0.0, 6.0])
    single, double = (recorded(epochs, np.zeros(3, int), 2, dtype=d).dynamics() for d in (np.float32, np.float64))
    np.testing.assert_allclose(single.variability, double.variability, rtol=0.05)


def test_pieces_order_and_waiting_rows_do_not_matter(monkeypatch):
    epochs, labels = random_epochs()
    whole = recorded(epochs, labels, 4, batch=37).dynamics()
    monkeypatch.setattr("distilcal.dynamics.recorder.PENDING_ROWS", 5)
    parts = recorded(epochs, labels, 4, batch=3).dynamics()
    for name in ("confidence", "variability", "aum", "forgotten", "logits"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_an_example_that_comes_twice_before_it_is_added_counts_twice():
    recorder = Recorder(["a", "b"], [0, 1], ["x", "y"], dtype=np.float64)
    recorder.record([0, 1], np.array([[1.0, 0.0], [0.0, 1.0]]))
    recorder.record([0], np.array([[0.0, 3.0]]))
    found = recorder.dynamics()
    assert found.epochs.tolist() == [2, 1]
    assert found.aum.tolist() == [(1.0 - 3.0) / 2, 1.0]
    assert found.forgotten.tolist() == [1, 0]
    assert found.logits[0].tolist() == [0.0, 3.0]


def test_a_recorder_goes_on_from_its_state(tmp_path):
    epochs, labels = random_epochs()
    straight = recorded(epochs, labels, 4).dynamics()
    state = {k: v.copy() for k, v in recorded(epochs[:2], labels, 4).state().items()}
    later = recorded([], labels, 4, folder=tmp_path / "mapped")  # memory-mapped ones too
    later.restore(state)
    for logits in epochs[2:]:
        later.record(np.arange(37), logits)
        later.end_epoch()
    for name in ("confidence", "variability", "aum", "forgotten", "correctness", "logits"):
        np.testing.assert_array_equal(getattr(straight, name), getattr(later.dynamics(), name))
    with pytest.raises(InputError, match="has shape"):
        recorded([], labels[:5], 4).restore(state)


def test_tensors_of_any_kind_are_taken():
    torch = pytest.importorskip("torch")
    recorder = Recorder(["a", "b"], [0, 1], ["x", "y"])
    logits = torch.tensor([[1.0, 0.0], [0.0, 2.0]], requires_grad=True)
    recorder.record(torch.tensor([0, 1]), logits * 1)
    recorder.record(torch.tensor([0, 1]), logits.to(torch.bfloat16))
    assert recorder.dynamics().aum.tolist() == [1.0, 2.0]


def test_regions_do_not_depend_on_the_order_of_the_data():
    epochs, labels = random_epochs(60)
    epochs[:, 30:] = epochs[:, :30]  # ties
    labels[30:] = labels[:30]
    ids = np.array([f"r{i:02d}" for i in range(60)])
    shuffle = np.random.default_rng(1).permutation(60)
    found = []
    for order in (np.arange(60), shuffle):
        recorder = Recorder(ids[order], labels[order], "abcd")
        for logits in epochs:
            recorder.record(np.arange(60), logits[order])
        made = recorder.dynamics()
        found.append({name: made.ids[rows].tolist() for name, rows in regions(made).items()})
    assert found[0] == found[1]
    assert all(len(v) == 19 for v in found[0].values())  # floor(0.33 · 60)


def test_regions_can_be_disjoint_and_follow_the_fraction():
    epochs, labels = random_epochs(90, epochs=3)
    made = recorded(epochs, labels, 4).dynamics()
    apart = regions(made, 1 / 3, disjoint=True)
    assert len(np.unique(np.concatenate(list(apart.values())))) == 90
    assert apart["ambiguous"].tolist() == regions(made, 1 / 3)["ambiguous"].tolist()
    for fraction in (0, 1.5):
        with pytest.raises(InputError, match="fraction"):
            regions(made, fraction)


def test_doubtful_labels_come_first():
    epochs, labels = random_epochs(50)
    epochs[:, np.arange(50), labels] += 6.0  # learned
    wrong = [3, 11]
    epochs[:, wrong, labels[wrong]] -= 14.0
    made = recorded(epochs, labels, 4).dynamics()
    assert sorted(likely_mislabelled(made).tolist()[:2]) == wrong
    assert (made.aum[likely_mislabelled(made)] < 0).all()
    assert len(likely_mislabelled(made, most=1)) == 1


def test_a_saved_map_comes_back_and_damage_is_refused(tmp_path):
    epochs, labels = random_epochs()
    made = recorded(epochs, labels, 4, dtype=np.float32).dynamics()
    made.save(tmp_path / "map")
    back = load_dynamics(tmp_path / "map")
    for name in ("ids", "labels", "confidence", "variability", "aum", "logits"):
        np.testing.assert_array_equal(getattr(made, name), getattr(back, name))
    assert back.classes == made.classes
    with pytest.raises(InputError, match="exists already"):
        made.save(tmp_path / "map")
    path = tmp_path / "map" / "aum.npy"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(InputError, match="damaged"):
        load_dynamics(tmp_path / "map")
    with pytest.raises(InputError, match="no map"):
        load_dynamics(tmp_path)


def test_a_map_is_matched_by_id_and_class_name():
    epochs, labels = random_epochs()
    made = recorded(epochs, labels, 4).dynamics()
    order = np.random.default_rng(0).permutation(37)[:20]
    turned = ("3", "2", "1", "0")  # the same classes in another order
    part = made.for_examples(made.ids[order], 3 - labels[order], turned, "map")
    np.testing.assert_array_equal(part.confidence, made.confidence[order])
    np.testing.assert_array_equal(part.logits, made.logits[order][:, ::-1])
    with pytest.raises(InputError, match="other data: it lacks 1 of 1"):
        made.for_examples(np.array(["new"]), np.array([0]), made.classes, "map")
    with pytest.raises(InputError, match="calls id 'r0'"):
        made.for_examples(made.ids[:1], (labels[:1] + 1) % 4, made.classes, "map")


def test_a_map_that_has_not_seen_every_example_is_refused():
    recorder = Recorder(["a", "b"], [0, 1], ["x", "y"])
    recorder.record([0], np.array([[1.0, 0.0]]))
    made = recorder.dynamics()
    assert np.isnan(made.confidence[1])
    with pytest.raises(InputError, match="has seen 1 of 2"):
        made.for_examples(made.ids, made.labels, made.classes, "map")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Recorder(["a", "a"], [0, 0], ["x"]), "same id"),
        (lambda: Recorder(["a"], [3], ["x", "y"]), "labels must be"),
        (lambda: Recorder(["a"], [0, 1], ["x", "y"]), "1 ids and 2 labels"),
    ],
)
def test_a_recorder_refuses_what_cannot_be(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_a_recorder_refuses_rows_and_shapes_that_cannot_be():
    recorder = Recorder(["a", "b"], [0, 1], ["x", "y"])
    recorder.record([5], np.zeros((1, 2)))
    with pytest.raises(InputError, match="no example 5"):
        recorder.end_epoch()
    recorder.record([0], np.zeros((1, 3)))
    with pytest.raises(InputError, match="shape"):
        recorder.end_epoch()
    with pytest.raises(InputError, match="no example with id"):
        recorder.rows(["z"])
    assert recorder.rows(["b", "a"]).tolist() == [1, 0]


def test_the_first_row_out_of_range_is_named():
    recorder = Recorder(["a", "b"], [0, 1], ["x", "y"])
    recorder.record([0, -1], np.zeros((2, 2)))
    with pytest.raises(InputError, match="no example -1"):
        recorder.end_epoch()


@pytest.mark.parametrize(("saliency", "words"), [(None, "got none"), (np.zeros((1, 2)), "got shape \\(1, 2\\)")])
def test_a_recorder_of_saliency_refuses_logits_without_it(saliency, words):
    recorder = Recorder(["a"], [0], ["x", "y"], width=3)
    recorder.record([0], np.zeros((1, 2)), saliency)
    with pytest.raises(InputError, match=f"saliency of 3 numbers per example, {words}"):
        recorder.end_epoch()


def test_a_recorder_without_examples_names_an_unknown_id():
    with pytest.raises(InputError, match="no example with id 'a'"):
        Recorder([], [], ["x", "y"]).rows(["a"])
