"""Pairs: every rule gives the partners that it promises, and refuses maps that it cannot use."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mixing_cases import Told, batch_of, dynamics_of  # noqa: E402

from distilcal.config.schema import ViewSettings  # noqa: E402
from distilcal.dynamics import aum_halves, random_halves, regions, saliency  # noqa: E402
from distilcal.errors import InputError  # noqa: E402
from distilcal.losses import cross_entropy  # noqa: E402
from distilcal.models.network import VectorNetwork  # noqa: E402
from distilcal.views import StepContext, build_term, build_view, select_kept_rows  # noqa: E402
from distilcal.views.pairs import current_saliency, divide_in_halves, extreme_partners  # noqa: E402

# ---- pairs -------------------------------------------------------------------------------------------------------------


def brute_force(rows, high, which):
    norm = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosine = norm @ norm.T
    cosine[high[:, None] == high[None]] = -np.inf if which == "similar" else np.inf
    return cosine, cosine.argmax(axis=1) if which == "similar" else cosine.argmin(axis=1)


@pytest.mark.parametrize("which", ["similar", "dissimilar"])
@pytest.mark.parametrize("block", [7, 64, 1 << 20])
@pytest.mark.parametrize("any_half", [False, True])
def test_partners_over_the_whole_half_are_those_of_all_cosines(which, block, any_half):
    rng = np.random.default_rng(0)
    rows = saliency(rng.normal(size=(101, 3)) * 3, rng.integers(0, 3, 101))
    high = rng.random(101) < 0.4
    found = extreme_partners(rows, None if any_half else high, which, block=block)
    cosine, wanted = brute_force(rows, np.arange(101) if any_half else high, which)
    assert (found != np.arange(101)).all() if any_half else (high[found] != high).all()
    np.testing.assert_allclose(cosine[np.arange(101), found], cosine[np.arange(101), wanted], atol=1e-6)
    assert (found == wanted).mean() > 0.95  # the rest ties to single precision


def test_a_tiny_saliency_has_a_direction_too():
    rows = np.array([[1e-20, 0.4e-20, 0.6e-20], [1.0, 0.4, 0.6], [0.5, 0.5, 0.0]], dtype=np.float32)
    found = extreme_partners(rows, np.array([True, False, False]), "similar")
    assert found.tolist() == [1, 0, 0]


def test_regions_pair_each_example_of_one_with_one_of_the_other():
    rng = np.random.default_rng(0)
    dynamics = dynamics_of(rng.normal(size=(60, 3)), rng.integers(0, 3, 60), np.zeros(60), confidence=rng.random(60),
                           variability=rng.random(60))  # fmt: skip
    easy, ambiguous = (set(regions(dynamics)[k].tolist()) for k in ("easy", "ambiguous"))
    for candidates in ("all", "batch"):
        view = build_view(ViewSettings(kind="manifold", pairs="regions", candidates=candidates), 3, dynamics)
        assert view.drops_rows
        met = set()
        for step in range(30):
            rows = rng.permutation(60)[:20]
            batch = batch_of(torch.zeros(20, 3), np.zeros(20, dtype=int))
            batch.step = StepContext(rows, (0, 0, step))
            partner, keep = view.pairs(None, batch, 0)
            for row, other, has in zip(rows.tolist(), partner.tolist(), keep.tolist(), strict=True):
                if has:
                    assert row != other
                    assert (row in easy and other in ambiguous) or (row in ambiguous and other in easy)
                    assert candidates == "all" or other in rows
                    met.add((row, other))
                elif candidates == "all":
                    assert row not in easy | ambiguous
        assert len(met) > 150  # partners are drawn anew


def test_two_classes_are_paired_at_random_and_said_once():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 40)
    dynamics = dynamics_of(rng.normal(size=(40, 2)), labels, rng.normal(size=40), features=rng.random((40, 5)))
    with pytest.warns(UserWarning, match="two classes.*saliency = 'features'") as said:
        view = build_view(ViewSettings(kind="manifold", pairs="similar"), 2, dynamics)
    assert len(said) == 1
    high = dynamics.aum >= np.median(dynamics.aum)
    partners = []
    for step in range(20):
        batch = batch_of(torch.zeros(40, 2), labels)
        batch.step = StepContext(np.arange(40), (0, 0, step))
        partner, keep = view.pairs(None, batch, 0)
        assert keep.all()
        assert (high[partner] != high).all()
        partners.append(partner)
    assert len({p[0] for p in partners}) > 5
    again = view.pairs(None, batch, 0)[0]
    assert (again == partners[-1]).all()  # with the given generator
    by_feature = build_view(ViewSettings(kind="manifold", pairs="similar", saliency="features"), 2, dynamics)
    expected = brute_force(dynamics.feature_saliency, high, "similar")[1]
    assert (by_feature.pairs(None, batch, 0)[0] == expected).mean() > 0.9


def test_halves_pair_at_random_across_and_any_half_among_all():
    rng = np.random.default_rng(0)
    dynamics = dynamics_of(rng.normal(size=(40, 3)), rng.integers(0, 3, 40), rng.normal(size=40))
    high = dynamics.aum >= np.median(dynamics.aum)
    batch = batch_of(torch.randn(40, 3), dynamics.labels)
    for candidates in ("all", "batch"):
        partner, keep = build_view(ViewSettings(kind="manifold", pairs="halves", candidates=candidates), 3, dynamics).pairs(
            None, batch, 0
        )
        assert keep.all()
        assert (high[partner] != high).all()
        for which in ("similar", "dissimilar"):
            settings = ViewSettings(kind="manifold", pairs=which, candidates=candidates, any_half=True)
            partner, keep = build_view(settings, 3, dynamics).pairs(Told(), batch, 0)
            assert keep.all()
            assert (partner != np.arange(40)).all()
            assert (high[partner] == high).any()


@pytest.mark.parametrize("candidates", ["all", "batch"])
@pytest.mark.parametrize("pairs", ["halves", "similar", "dissimilar"])
def test_random_halves_replace_those_by_aum_and_nothing_else(pairs, candidates):
    rng = np.random.default_rng(1)
    dynamics = dynamics_of(rng.normal(size=(41, 3)), rng.integers(0, 3, 41), rng.normal(size=41))
    batch = batch_of(torch.randn(41, 3), dynamics.labels)
    settings = ViewSettings(kind="manifold", pairs=pairs, candidates=candidates, halves="random")
    found = []
    for seed in (0, 1):
        half = random_halves(dynamics, seed)
        assert half.sum() == 21
        assert (half != aum_halves(dynamics)).any()
        assert (divide_in_halves(settings, dynamics, seed) == half).all()
        partner, keep = build_view(settings, 3, dynamics, seed=seed).pairs(Told(), batch, 0)
        assert keep.all()
        assert (half[partner] != half).all()
        found.append(half)
    assert (found[0] != found[1]).any()
    shuffled = rng.permutation(41)
    assert (random_halves(dynamics.select(shuffled), 1) == found[1][shuffled]).all(), "the order of rows does not matter"


def test_random_halves_need_pairs_across_halves():
    for changes in ({"pairs": "random"}, {"pairs": "regions"}, {"pairs": "similar", "any_half": True}):
        with pytest.raises(InputError, match="has no effect"):
            ViewSettings(kind="manifold", halves="random", **changes)


def test_plain_gradients_at_the_features_would_not_tell_two_classes_apart():
    """Why the saliency of features is the gradient times the feature."""
    torch.manual_seed(0)
    network = VectorNetwork(6, 2)
    x = torch.randn(5, 6, requires_grad=True)
    labels = torch.tensor([0, 1, 1, 0, 1])
    said = network({"vectors": x})
    gradient = torch.autograd.grad(cross_entropy(said.logits, labels) * 5, x)[0]
    direction = gradient.abs() / gradient.norm(dim=1, keepdim=True)
    assert torch.allclose(direction, direction[:1].expand_as(direction), atol=1e-5)
    found = current_saliency(network, said, labels, "features")
    assert torch.allclose(found, (gradient * x).abs().detach(), atol=1e-6)
    assert not torch.allclose(found / found.norm(dim=1, keepdim=True), (found / found.norm(dim=1, keepdim=True))[:1], atol=1e-2)


def test_a_batch_of_one_half_has_no_partners():
    dynamics = dynamics_of(np.random.default_rng(0).normal(size=(10, 3)), np.zeros(10, dtype=int), np.arange(10.0))
    view = build_view(ViewSettings(kind="manifold", pairs="similar", candidates="batch"), 3, dynamics)
    batch = batch_of(torch.randn(3, 3, requires_grad=True), [0, 0, 0])
    batch.step = StepContext(np.array([7, 8, 9]))
    seen = select_kept_rows(view(Told(), batch))
    assert len(seen) == 0
    value = build_term("cross_entropy", view="similar")(seen)
    assert value.item() == 0.0
    value.backward()


def test_maps_that_cannot_be_paired_are_refused():
    dynamics = dynamics_of(np.zeros((20, 3)), np.zeros(20, dtype=int), np.zeros(20))
    with pytest.raises(InputError, match="'easy' has 1 of 20 examples, too few"):
        build_view(ViewSettings(kind="manifold", pairs="regions", fraction=0.05), 3, dynamics)
    with pytest.raises(InputError, match="same AUM"):
        build_view(ViewSettings(kind="manifold", pairs="similar"), 3, dynamics)
    with pytest.raises(InputError, match="needs a map"):
        build_view(ViewSettings(kind="manifold", pairs="regions"), 3)
    halves = dynamics_of(np.zeros((20, 3)), np.zeros(20, dtype=int), np.arange(20.0))
    with pytest.raises(InputError, match="no saliency of features"):
        build_view(ViewSettings(kind="manifold", pairs="similar", saliency="features"), 3, halves)
    with pytest.raises(InputError, match="hidden layer mixes examples of one batch"):
        build_view(ViewSettings(kind="manifold", layers=(1,), pairs="similar"), 3, halves)
    batch = batch_of(torch.randn(4, 3), [0, 1, 2, 0])
    batch.required_inputs = frozenset({"teacher_logits"})
    with pytest.raises(InputError, match="needs a live teacher"):
        build_view(ViewSettings(teacher="mixed"), 3)(Told(), batch)
