"""Views: the right examples are mixed in the right place with the right targets, as the papers' code does it."""

import copy

import numpy as np
import pytest
from golden_cases import cases

torch = pytest.importorskip("torch")

import tiny  # noqa: E402

from distilcal.config.schema import ViewSettings  # noqa: E402
from distilcal.dynamics import Dynamics, Recorder, regions, saliency  # noqa: E402
from distilcal.errors import InputError  # noqa: E402
from distilcal.losses import LOSSES, cross_entropy  # noqa: E402
from distilcal.models.image import build_image_network  # noqa: E402
from distilcal.models.network import ImageNetwork, Mix, Output, VectorNetwork  # noqa: E402
from distilcal.views import Batch, StepContext, build_term, build_view, plain, select_kept_rows  # noqa: E402
from distilcal.views.mixing import box_mask, boxes  # noqa: E402
from distilcal.views.pairs import current_saliency, extreme_partners  # noqa: E402

GOLDEN = cases("augment.json")
SALIENT = {k: v for k, v in cases("aum_saliency_mixup.json").items() if not k.startswith("aum:")}
EASY_AMBIGUOUS = cases("data_maps.json")["easy_ambiguous_mixup:B4_K3"]


class Told:
    """A network that says what it is told, and remembers what it was shown."""

    def __init__(self, logits=None):
        self.logits, self.shown = logits, []

    def __call__(self, inputs, mix=None):
        self.shown.append((inputs, mix))
        if self.logits is not None:
            return Output(self.logits, self.logits)
        values = next(iter(inputs.values())).flatten(1)
        return Output(values, values)


class Fixed(StepContext):
    """StepContext whose first random numbers are given: whether to change, the share, the permutation, the centre."""

    def __init__(self, rows, share=0.5, permutation=None, centre=None):
        object.__setattr__(self, "rows", np.asarray(rows))
        object.__setattr__(self, "seed", (0,))
        self.__dict__.update(share=share, permutation=permutation, centre=centre)

    def rng(self, *use):
        real, outer = np.random.default_rng([0, *use]), self

        class Given:
            random = staticmethod(real.random)
            choice = staticmethod(real.choice)

            @staticmethod
            def beta(a, b, size):
                return np.full(size, outer.share)

            @staticmethod
            def permutation(n):
                return np.asarray(outer.permutation if outer.permutation is not None else real.permutation(n))

            @staticmethod
            def integers(low, high=None, size=None):
                if outer.centre is not None:
                    return np.broadcast_to(outer.centre, size).copy()
                return real.integers(low, high, size=size)

        return Given()


def batch_of(values, labels, name="vectors", **named):
    values = torch.as_tensor(values)
    labels = torch.as_tensor(labels)
    return Batch({name: values}, labels, labels, torch.arange(len(labels)), **named)


def dynamics_of(logits, labels, aum, *, confidence=None, variability=None, features=None):
    """A map whose columns are given."""
    n = len(labels)
    zeros = np.zeros(n, dtype=np.int32)
    return Dynamics(
        ids=np.array([f"r{i:04d}" for i in range(n)]),
        labels=np.asarray(labels),
        classes=tuple(f"c{k}" for k in range(np.asarray(logits).shape[1])),
        epochs=zeros + 1,
        confidence=np.zeros(n) if confidence is None else np.asarray(confidence),
        variability=np.zeros(n) if variability is None else np.asarray(variability),
        correctness=zeros,
        forgotten=zeros,
        aum=np.asarray(aum),
        logits=np.asarray(logits),
        feature_saliency=features,
    )


# ---- goldens of the mixup family ---------------------------------------------------------------------------------------

MIXUPS = {k: v for k, v in GOLDEN.items() if k.startswith(("mixup:", "manifold_mixup:"))}


@pytest.mark.parametrize("case", MIXUPS.values(), ids=MIXUPS)
def test_mixup_mixes_what_its_authors_mix(case):
    given, expected = case["inputs"], case["expected"]
    x = torch.tensor(given.get("x", given.get("hidden")), dtype=torch.float64)
    logits = torch.tensor(given["logits_of_mixed"], dtype=torch.float64)
    network = Told(logits)
    batch = batch_of(x, given["labels"], "pixels" if x.dim() == 4 else "vectors")
    batch.step = Fixed(np.arange(len(x)), case["params"]["lambda"], given["perm"])
    view = build_view(ViewSettings(), logits.shape[1])(network, batch)
    shown = next(iter(network.shown[-1][0].values()))
    np.testing.assert_allclose(shown, expected.get("mixed_x", expected.get("mixed_hidden")), atol=1e-7)
    wanted = expected.get("loss", expected.get("loss_cross_entropy"))
    assert float(cross_entropy(view.logits, view.targets)) == pytest.approx(wanted, rel=1e-6)
    if "soft_targets" in expected:
        np.testing.assert_allclose(view.targets, expected["soft_targets"], atol=1e-7)
    if "loss_bce_on_softmax_author" in expected:
        assert float(LOSSES["softmax_bce"](logits, view.targets)) == pytest.approx(
            expected["loss_bce_on_softmax_author"], rel=1e-6
        )


def test_cutmix_boxes_are_clipped_and_the_share_follows():
    rows = np.array(GOLDEN["cutmix_boxes"]["expected"]["rows"], dtype=float)
    for height, width, share, c2, c3, lo2, lo3, hi2, hi3, adjusted in rows:
        low, high, left = boxes(np.array([share]), np.array([[int(c2), int(c3)]]), int(height), int(width))
        assert low.tolist() == [[lo2, lo3]]
        assert high.tolist() == [[hi2, hi3]]
        assert left[0] == pytest.approx(adjusted, rel=1e-9)
        assert int(box_mask(low, high, int(height), int(width)).sum()) == (hi2 - lo2) * (hi3 - lo3)


CUTMIX = {k: v for k, v in GOLDEN.items() if k.startswith("cutmix:")}


@pytest.mark.parametrize("case", CUTMIX.values(), ids=CUTMIX)
def test_cutmix_pastes_what_its_authors_paste(case):
    given, expected = case["inputs"], case["expected"]
    x, logits = (torch.tensor(given[k], dtype=torch.float64) for k in ("x", "logits_of_mixed"))
    network = Told(logits)
    batch = batch_of(x, given["labels"], "pixels")
    batch.step = Fixed(np.arange(len(x)), case["params"]["lambda_drawn"], given["perm"], case["params"]["center"])
    view = build_view(ViewSettings(kind="cutmix"), logits.shape[1])(network, batch)
    np.testing.assert_allclose(network.shown[-1][0]["pixels"], expected["mixed_x"])
    assert float(view.targets.max(dim=1).values[0]) == pytest.approx(
        max(expected["adjusted_lambda"], 1 - expected["adjusted_lambda"])
    )
    assert float(cross_entropy(view.logits, view.targets)) == pytest.approx(expected["loss"], rel=1e-6)


def test_cutout_cuts_what_its_authors_cut():
    for height, width, length, cy, cx, y1, y2, x1, x2, zeroed in GOLDEN["cutout_masks"]["expected"]["rows"]:
        batch = batch_of(torch.ones(2, 3, height, width), [0, 1], "pixels")
        batch.step = Fixed(np.arange(2), centre=(cy, cx))
        network = Told()
        view = build_view(ViewSettings(kind="cutout", length=length), 3)(network, batch)
        shown = network.shown[-1][0]["pixels"]
        assert int((shown[0, 0] == 0).sum()) == zeroed
        assert (shown[:, :, y1:y2, x1:x2] == 0).all()
        assert view.targets.tolist() == [0, 1]  # labels as they are


# ---- P000 and P001 -----------------------------------------------------------------------------------------------------


def test_easy_and_ambiguous_mix_to_the_golden_loss():
    case = EASY_AMBIGUOUS
    given = case["inputs"]
    logits = torch.tensor(given["logits_easy"] + given["logits_ambiguous"], dtype=torch.float64)
    labels = given["labels_easy"] + given["labels_ambiguous"]
    batch = batch_of(logits, labels)
    batch.step = Fixed(np.arange(8), case["params"]["lambda"], [4, 5, 6, 7, 0, 1, 2, 3])
    view = build_view(ViewSettings(kind="manifold"), 3)(Told(), batch)
    first = cross_entropy(view.logits[:4], view.targets[:4])  # easy rows with their ambiguous partners
    assert float(first) == pytest.approx(case["expected"]["mix_loss_batch_mean"], rel=1e-6)


def salient_views(case, variant="paper"):
    """P001 on a golden batch: the views of its two sides, and the batch."""
    given, params = case["inputs"], case["params"]
    logits = torch.tensor(given["logits_high"] + given["logits_low"], dtype=torch.float64, requires_grad=True)
    labels = given["labels_high"] + given["labels_low"]
    # Logits that were recorded such that their saliency is the stored one: p of the others, and what is left for the label.
    stored = np.array(given["stored_saliency_high"] + given["stored_saliency_low"])
    probs = stored.copy()
    probs[np.arange(8), labels] = 1 - stored[np.arange(8), labels]
    dynamics = dynamics_of(np.log(probs), np.array(labels), [1.0] * 4 + [0.0] * 4)
    batch = batch_of(logits, labels)
    batch.step = Fixed(np.arange(8), params["lambda"])
    seen = {"plain": plain(Told(), batch)}
    for which in ("similar", "dissimilar"):
        settings = ViewSettings(kind="manifold", pairs=which, candidates="batch", variant=variant)
        view = build_view(settings, logits.shape[1], dynamics)
        seen[which] = view(Told(), batch)
        partners = view.pairs(Told(), batch, 0)[0]
        expected = case["expected"]
        assert partners[:4].tolist() == [4 + i for i in expected[f"most_{which}_for_high"]]
        assert partners[4:].tolist() == expected[f"most_{which}_for_low"]
    return seen, logits


@pytest.mark.parametrize("case", SALIENT.values(), ids=SALIENT)
def test_aum_saliency_is_the_paper_s_objective(case):
    smoothing = case["params"]["label_smoothing_sigma"] or 0.0
    seen, _ = salient_views(case)
    expected = case["expected"]["paper"]
    for side, rows in (("high", slice(0, 4)), ("low", slice(4, 8))):
        for which in ("similar", "dissimilar"):
            found = cross_entropy(
                seen[which].logits[rows], seen[which].targets[rows].double(), smoothing=smoothing, convention="offtarget"
            )
            assert found.item() == pytest.approx(expected[f"{which}_loss_{side}"], rel=1e-6)
    mixed = {"smoothing": smoothing, "convention": "offtarget"}
    terms = [
        build_term("cross_entropy", 0.8),
        build_term("cross_entropy", 0.1, "similar", mixed),
        build_term("cross_entropy", 0.1, "dissimilar", mixed),
    ]
    total = sum(t.weight * t(select_kept_rows(seen[t.view])) for t in terms)  # a batch of both sides: the mean of the two
    assert total.item() == pytest.approx(expected["total"], rel=1e-6)


@pytest.mark.parametrize("case", SALIENT.values(), ids=SALIENT)
def test_author_code_has_the_released_program_s_value_and_gradient(case):
    seen, logits = salient_views(case, "author_code")
    mixed = {"smoothing": case["params"]["label_smoothing_sigma"] or 0.0, "convention": "offtarget"}
    factor = 4 / 3  # a sum over the side's batch and a mean over classes, where the paper has a mean over the batch
    terms = [
        build_term("cross_entropy", 0.8),
        build_term("cross_entropy", 0.1 * factor, "similar", mixed),
        build_term("cross_entropy", 0.1 * factor, "dissimilar", mixed),
    ]
    total = sum(t.weight * t(select_kept_rows(seen[t.view])) for t in terms)
    expected = case["expected"]["author_code"]
    assert total.item() == pytest.approx(expected["total"], rel=1e-6)
    # It steps with the gradient of both plain losses on top, each a mean over its side: weight 2.8 in place of 0.8.
    stepped = total + 2.0 * cross_entropy(seen["plain"].logits, seen["plain"].targets)
    gradient = torch.autograd.grad(stepped, logits)[0]
    np.testing.assert_allclose(gradient[:4], expected["accumulated_grad_logits_high"], rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(gradient[4:], expected["accumulated_grad_logits_low"], rtol=1e-5, atol=1e-8)


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


# ---- draws -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shares", ["batch", "sample"])
def test_parts_of_a_batch_are_mixed_as_the_whole(shares):
    torch.manual_seed(0)
    x, labels = torch.randn(12, 5), torch.randint(0, 5, (12,))
    view = build_view(ViewSettings(shares=shares), 5)
    everything = batch_of(x, labels)

    def fetch(rows, seed, taught):
        return everything.select(torch.from_numpy(rows))

    draws = StepContext(np.arange(12), (3, 1, 4))
    whole = view(Told(), batch_of(x, labels, step=draws))
    for place in (np.arange(0, 5), np.arange(5, 12)):
        part = Batch({"vectors": x[place]}, labels[place], labels[place], torch.from_numpy(place), step=draws, positions=place,
                     load_rows=fetch)  # fmt: skip
        seen = view(Told(), part)
        assert torch.equal(seen.logits, whole.logits[place])
        assert torch.equal(seen.targets, whole.targets[place])
    distinct = {round(float(t.max()), 5) for t, own in zip(whole.targets, labels, strict=True) if t[own] < 1}
    assert len(distinct) > 2 if shares == "sample" else len(distinct) == 1


def test_shares_follow_beta_and_views_of_a_step_have_the_same():
    settings = ViewSettings(kind="manifold", alpha=0.4)
    one, two = build_view(settings, 2, number=0), build_view(settings, 2, number=1)
    drawn, partners = [], []
    for step in range(3000):
        batch = batch_of(torch.zeros(6, 2), [0] * 6, step=StepContext(np.arange(6), (0, 0, step)))
        first, second = one.shares(batch), two.shares(batch)
        assert torch.equal(first, second)
        drawn.append(float(first[0]))
        partners.append((one.pairs(None, batch, 0)[0] != two.pairs(None, batch, 1)[0]).any())
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.03)
    assert np.var(drawn) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), abs=0.01)  # of Beta(0.4, 0.4)
    assert np.mean(partners) > 0.9  # but not the same partners


def test_alpha_0_and_unchanged_batches_are_the_plain_pass():
    batch = batch_of(torch.randn(4, 3), [0, 1, 2, 0])
    for settings in (ViewSettings(alpha=0.0), ViewSettings(probability=0.0)):
        network = Told()
        batch.plain_output = None
        view = build_view(settings, 3)(network, batch)
        assert len(network.shown) == 1
        assert torch.equal(view.logits, plain(network, batch).logits)
        assert view.targets.argmax(dim=1).tolist() == [0, 1, 2, 0]
        assert len(network.shown) == 1  # shared with the plain view
    changed = [
        bool((build_view(ViewSettings(kind="cutmix", probability=0.5), 3).shares(batch_of(torch.zeros(2, 1), [0, 0],
              step=StepContext(np.arange(2), (0, 0, s)))) < 1).all())
        for s in range(400)
    ]  # fmt: skip
    assert np.mean(changed) == pytest.approx(0.5, abs=0.08)


def test_features_cost_one_pass_and_only_for_those_who_have_partners():
    rng = np.random.default_rng(0)
    dynamics = dynamics_of(rng.normal(size=(90, 3)), rng.integers(0, 3, 90), np.zeros(90), confidence=rng.random(90),
                           variability=rng.random(90))  # fmt: skip
    everything = batch_of(torch.randn(90, 3), rng.integers(0, 3, 90))
    view = build_view(ViewSettings(kind="manifold", pairs="regions"), 3, dynamics)
    rows = rng.permutation(90)[:30]
    batch = everything.select(torch.from_numpy(rows))
    batch = Batch(batch.inputs, batch.labels, batch.targets, batch.ids, step=StepContext(rows), positions=np.arange(30),
                  load_rows=lambda rows, seed, taught: everything.select(torch.from_numpy(rows)))  # fmt: skip
    network = Told()
    plain(network, batch)
    seen = select_kept_rows(view(network, batch))
    assert len(network.shown) == 2  # the plain pass and that of the partners
    partner, keep = view.pairs(None, batch, 0)
    assert len(network.shown[1][0]["vectors"]) == keep.sum() == len(seen)
    share = view.shares(batch)[0]
    own, theirs = everything.inputs["vectors"][rows[keep]], everything.inputs["vectors"][partner[keep]]
    torch.testing.assert_close(seen.logits, share * own + (1 - share) * theirs)
    expected = (
        share * torch.eye(3)[everything.labels[rows[keep]]] + (1 - share) * torch.eye(3)[everything.labels[partner[keep]]]
    )
    torch.testing.assert_close(seen.targets, expected)


# ---- what the teacher says ---------------------------------------------------------------------------------------------


def test_a_teacher_of_clean_examples_is_mixed_as_they_are():
    teacher = torch.randn(4, 3)
    batch = batch_of(torch.randn(4, 3), [0, 1, 2, 0], teacher_logits=teacher)
    batch.required_inputs = frozenset({"logits", "teacher_logits"})
    batch.step = Fixed(np.arange(4), 0.3, [1, 0, 3, 2])
    view = build_view(ViewSettings(), 3)(Told(), batch)
    p = teacher.softmax(dim=1)
    torch.testing.assert_close(view.teacher_logits.softmax(dim=1), 0.3 * p + 0.7 * p[[1, 0, 3, 2]])


def test_a_teacher_of_mixed_examples_is_shown_them():
    x = torch.randn(4, 3)
    batch = batch_of(x, [0, 1, 2, 0], teacher_logits=torch.zeros(4, 3))
    batch.required_inputs = frozenset({"teacher_logits"})
    batch.step = Fixed(np.arange(4), 0.3, [1, 0, 3, 2])
    batch.run_teacher = lambda inputs, mix: {"teacher_logits": inputs["vectors"] * 2}
    view = build_view(ViewSettings(teacher="mixed"), 3)(Told(), batch)
    torch.testing.assert_close(view.teacher_logits, 2 * (0.3 * x + 0.7 * x[[1, 0, 3, 2]]))


# ---- inside networks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: tiny.save_model(root / kind, kind, labels=("neg", "pos")) for kind in tiny.ARCHITECTURES}


def text_network(folders, kind):
    from distilcal.config.schema import ModelSettings
    from distilcal.models.classifier import build_classifier

    data = tiny.reviews(12)
    classifier = build_classifier(ModelSettings(name=str(folders[kind])), data)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # new weights are so small that all texts look alike
        for value in classifier.network.parameters():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    return classifier.network, classifier.inputs.prepare(data)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_text_mixed_with_itself_is_itself(folders, kind):
    network, tokens = text_network(folders, kind)
    inputs = tokens.batch(np.arange(6))
    with torch.no_grad():
        expected = network(inputs).logits
        share = torch.full((6,), 0.3)
        torch.testing.assert_close(network(inputs, mix=Mix(share, other=inputs)).logits, expected, rtol=1e-4, atol=1e-5)
        for layer in (1, 3):
            same = network(inputs, mix=Mix(share, layer, partner=torch.arange(6))).logits
            torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-5)
        # An example that keeps all of itself is as if alone, whatever its partner is; masks are those of both, though.
        whole = network(inputs, mix=Mix(torch.ones(6), 4, partner=torch.tensor([1, 0, 3, 2, 5, 4]))).logits
        torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_a_text_that_keeps_all_of_itself_is_itself(folders, kind):
    """However long its partner is, at the input and after a layer: the limit λ → 1 is the plain pass."""
    network, tokens = text_network(folders, kind)
    order = np.argsort(tokens.lengths)
    inputs = tokens.batch(order[[0, -1]])
    turned = {k: v[[1, 0]] for k, v in inputs.items()}
    share = torch.tensor([1.0 - 1e-6, 1.0 - 1e-6])
    with torch.no_grad():
        expected = network(inputs).features
        assert not torch.allclose(expected[0], expected[1], atol=0.05)  # they can be told apart
        torch.testing.assert_close(network(inputs, mix=Mix(share, other=turned)).features, expected, rtol=1e-3, atol=1e-4)
        hidden = network(inputs, mix=Mix(share, 2, partner=torch.tensor([1, 0]))).features
        torch.testing.assert_close(hidden, expected, rtol=1e-3, atol=1e-4)
        half = network(inputs, mix=Mix(torch.tensor([0.5, 0.5]), other=turned)).features
        assert not torch.allclose(half, expected, atol=0.01)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_padding_takes_no_part_in_a_mix_of_texts(folders, kind):
    network, tokens = text_network(folders, kind)
    lengths = tokens.lengths
    short, long = int(lengths.argmin()), int(lengths.argmax())
    assert lengths[short] < lengths[long]
    share = torch.tensor([0.4])
    with torch.no_grad():
        apart = [tokens.batch(np.array([row])) for row in (short, long)]
        alone = network(apart[0], mix=Mix(share, other=apart[1])).logits  # padded to each other only
        wide = {k: torch.nn.functional.pad(v, (0, 3)) for k, v in apart[1].items()}
        torch.testing.assert_close(network(apart[0], mix=Mix(share, other=wide)).logits, alone, rtol=1e-4, atol=1e-5)
        both = tokens.batch(np.array([short, long]))
        turned = {k: v[[1, 0]] for k, v in both.items()}
        shares = torch.tensor([0.4, 0.6])  # the same mix seen from both
        mixed = network(both, mix=Mix(shares, other=turned)).logits
        torch.testing.assert_close(mixed[:1], alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mixed[0], mixed[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_hidden_states_are_mixed_after_the_named_layer(folders, kind):
    network, tokens = text_network(folders, kind)
    inputs = tokens.batch(np.arange(6))
    partner, share = torch.tensor([3, 4, 5, 0, 1, 2]), torch.full((6,), 0.3)
    seen = {}

    def look(name):
        def hook(module, args, kwargs):
            seen[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    handles = [layer.register_forward_pre_hook(look(i), with_kwargs=True) for i, layer in enumerate(network.layers)]
    with torch.no_grad():
        network(inputs)
        before = dict(seen)
        network(inputs, mix=Mix(share, 2, partner=partner))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(seen[1], before[1])  # what the second layer reads, and so on
    states = before[2] * inputs["attention_mask"][..., None]  # padding adds nothing
    torch.testing.assert_close(seen[2], 0.3 * states + 0.7 * states[partner], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(seen[3], before[3])
    assert all(not layer._forward_hooks and not layer._forward_pre_hooks for layer in network.layers)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "deberta-v2", "mpnet"])
def test_layers_after_a_mix_attend_to_the_heavier_text(folders, kind):
    """A short text mixed with a long one: padding a batch further changes nothing, so no padding is attended to."""
    network, tokens = text_network(folders, kind)
    order = np.argsort(tokens.lengths)
    rows = np.array([order[0], order[-1]])
    inputs = tokens.batch(rows)
    wide = {k: torch.nn.functional.pad(v, (0, 3)) for k, v in inputs.items()}
    mix = Mix(torch.tensor([0.4, 0.6]), 1, partner=torch.tensor([1, 0]))
    with torch.no_grad():
        narrow_logits, wide_logits = network(inputs, mix=mix).logits, network(wide, mix=mix).logits
    torch.testing.assert_close(narrow_logits, wide_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(narrow_logits[0], narrow_logits[1], rtol=1e-4, atol=1e-5)  # one mix, the same attention


def test_multiple_choice_is_mixed_ending_by_ending(folders):
    from distilcal.config.schema import ModelSettings
    from distilcal.data import Dataset, choices
    from distilcal.models.classifier import build_classifier

    texts, _ = tiny.sentences(20, 0)
    data = Dataset(choices(texts[:5], [texts[5:8], texts[6:9], texts[8:11], texts[1:4], texts[2:5]]), np.array([0, 1, 2, 0, 1]),
                   ("0", "1", "2"))  # fmt: skip
    classifier = build_classifier(ModelSettings(name=str(folders["bert"]), head="new"), data)
    inputs = classifier.inputs.prepare(data).batch(np.arange(5))
    partner, share = torch.tensor([1, 0, 4, 3, 2]), torch.full((5,), 0.4)
    with torch.no_grad():
        plainly = classifier.network(inputs)
        same = classifier.network(inputs, mix=Mix(share, other=inputs)).logits
        torch.testing.assert_close(same, plainly.logits, rtol=1e-4, atol=1e-5)
        hidden = classifier.network(inputs, mix=Mix(share, 4, partner=partner))
        assert hidden.logits.shape == (5, 3)
        again = classifier.network(inputs, mix=Mix(share, 2, partner=torch.arange(5))).logits
        torch.testing.assert_close(again, plainly.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet8", "vgg8", "mobilenet_v2", "wrn_16_1"])
def test_pictures_are_mixed_at_the_input_and_after_stages(name):
    torch.manual_seed(0)
    network = ImageNetwork(build_image_network(name, 4)).eval()
    x = torch.randn(4, 3, 32, 32)
    partner, share = torch.tensor([1, 0, 3, 2]), torch.full((4,), 0.3)
    with torch.no_grad():
        mixed = network({"pixels": 0.3 * x + 0.7 * x[partner]}).logits
        torch.testing.assert_close(network({"pixels": x}, mix=Mix(share, other={"pixels": x[partner]})).logits, mixed)
        maps = network.body.feature_maps(x)
        deep = network({"pixels": x}, mix=Mix(share, len(network.layers), partner=partner))
        last = 0.3 * maps[-2] + 0.7 * maps[-2][partner]
        torch.testing.assert_close(deep.features, network.body.pool(last), rtol=1e-4, atol=1e-5)


def test_manifold_draws_its_layer_from_those_given():
    settings = ViewSettings(kind="manifold", layers=(0, 1, 2))
    view = build_view(settings, 3)
    torch.manual_seed(0)
    network = VectorNetwork(4, 3, hidden=(5, 6)).eval()
    drawn = set()
    for step in range(40):
        batch = batch_of(torch.randn(6, 4), [0, 1, 2, 0, 1, 2], step=StepContext(np.arange(6), (0, 0, step)))
        drawn.add(view._draw_layer(batch))
        seen = view(network, batch)
        partner = torch.from_numpy(view.pairs(None, batch, 0)[0])
        share = view.shares(batch)[:, None]
        if view._draw_layer(batch) == 2:
            features = network({"vectors": batch.inputs["vectors"]}).features
            torch.testing.assert_close(seen.features, share * features + (1 - share) * features[partner])
    assert drawn == {0, 1, 2}


def test_a_view_leaves_batch_and_network_as_they_were(folders):
    network, tokens = text_network(folders, "bert")
    inputs = tokens.batch(np.arange(6))
    before = copy.deepcopy(inputs), {k: v.clone() for k, v in network.state_dict().items()}
    batch = Batch(inputs, torch.zeros(6, dtype=torch.long), torch.zeros(6, dtype=torch.long), torch.arange(6))
    for settings in (ViewSettings(), ViewSettings(kind="manifold"), ViewSettings(kind="manifold", layers=(1, 2))):
        build_view(settings, 2)(network, batch)
    assert all(torch.equal(inputs[k], v) for k, v in before[0].items())
    assert all(torch.equal(network.state_dict()[k], v) for k, v in before[1].items())


def test_a_recorder_s_saliency_is_that_of_the_batch_view():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(7, 4)).astype(np.float32), rng.integers(0, 4, 7)
    recorder = Recorder([str(i) for i in range(7)], labels, "abcd")
    recorder.record(np.arange(7), logits)
    table = recorder.dynamics()
    said = Output(torch.from_numpy(logits), torch.from_numpy(logits))
    now = current_saliency(None, said, torch.from_numpy(labels), "logits")
    np.testing.assert_allclose(now, saliency(np.asarray(table.logits), table.labels), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta-v2"])
def test_partners_of_all_lengths_say_the_same_in_parts(folders, kind):
    from distilcal.views.mixing import run_by_length

    network, tokens = text_network(folders, kind)
    inputs = tokens.batch(np.arange(12))
    widths = []
    handle = network.layers[0].register_forward_hook(
        lambda m, a, o: widths.append((o if torch.is_tensor(o) else o[0]).shape[1])
    )
    with torch.no_grad():
        found = run_by_length(network, inputs)
        handle.remove()
        expected = network(inputs)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-5)
    assert len(widths) == 4
    assert sum(3 * w for w in widths) < inputs["input_ids"].numel()  # less padding


# ---- what a small change to the code would break -----------------------------------------------------------------------


def test_embeddings_beyond_a_text_s_end_are_the_other_s_alone(folders):
    network, tokens = text_network(folders, "bert")
    with torch.no_grad():
        network.model.get_input_embeddings().weight[0] = 5.0  # a [PAD] that would be seen
    order = np.argsort(tokens.lengths)
    short, long = (tokens.batch(order[[i]]) for i in (0, -1))
    end = int(short["attention_mask"].sum())
    for first, second, share in ((short, long, 0.3), (long, short, 0.7)):
        with torch.no_grad():
            embedded, inputs = network.embed_mixed(first, Mix(torch.tensor([share]), other=second))
            there = network.embed(long)
        torch.testing.assert_close(embedded[:, end:], 0.7 * there[:, end:])
        assert torch.equal(inputs["attention_mask"], long["attention_mask"])


def test_kinds_of_tokens_and_length_are_those_of_the_heavier_text():
    from distilcal.models.text import TextNetwork

    network = TextNetwork.__new__(TextNetwork)
    torch.nn.Module.__init__(network)
    network.embed = lambda inputs: inputs["input_ids"][..., None].float()
    own = {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 0]]),
           "token_type_ids": torch.tensor([[0, 1, 0], [0, 1, 0]])}  # fmt: skip
    other = {"input_ids": torch.ones(2, 4).long(), "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
             "token_type_ids": torch.tensor([[1, 0, 1, 1], [1, 0, 1, 0]])}  # fmt: skip
    _, inputs = network.embed_mixed(own, Mix(torch.tensor([0.6, 0.4]), other=other))
    assert inputs["token_type_ids"].tolist() == [[0, 1, 0, 0], [1, 0, 1, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def test_endings_are_mixed_with_the_same_ending_of_the_partner(folders):
    from distilcal.config.schema import ModelSettings
    from distilcal.data import Dataset, choices
    from distilcal.models.classifier import build_classifier

    texts, _ = tiny.sentences(30, 0)
    data = Dataset(
        choices(texts[:4], [texts[4 + 3 * i : 7 + 3 * i] for i in range(4)]), np.array([0, 1, 2, 0]), ("0", "1", "2")
    )
    network = (made := build_classifier(ModelSettings(name=str(folders["bert"]), head="new"), data)).network
    inputs = made.inputs.prepare(data).batch(np.arange(4))
    read = []
    handle = network.layers[2].register_forward_pre_hook(
        lambda m, args, kwargs: read.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    partner = torch.tensor([2, 3, 1, 0])
    with torch.no_grad():
        network(inputs)
        network(inputs, mix=Mix(torch.tensor([0.1, 0.2, 0.3, 0.4]), 2, partner=partner))
    handle.remove()
    before, after = (states.view(4, 3, *states.shape[1:]) for states in read)
    before = before * inputs["attention_mask"][..., None]
    share = torch.tensor([0.1, 0.2, 0.3, 0.4]).view(-1, 1, 1, 1)
    torch.testing.assert_close(after, share * before + (1 - share) * before[partner], rtol=1e-4, atol=1e-5)


def test_votes_are_mixed_where_the_data_have_them():
    votes = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4], [0.0, 1.0, 0.0]])
    batch = Batch({"vectors": torch.randn(4, 3)}, votes.argmax(dim=1), votes, torch.arange(4))
    batch.step = Fixed(np.arange(4), 0.3, [1, 0, 3, 2])
    for settings in (ViewSettings(), ViewSettings(kind="manifold")):
        view = build_view(settings, 3)(Told(), batch)
        torch.testing.assert_close(view.targets, 0.3 * votes + 0.7 * votes[[1, 0, 3, 2]])


def test_a_part_fetches_its_partners_even_if_it_holds_them():
    """Otherwise one of two processes might make a pass that the other does not make, and both would wait for ever."""
    fetched = []
    everything = batch_of(torch.randn(8, 3), [0, 1, 2, 0, 1, 2, 0, 1])

    def fetch(rows, seed, taught):
        fetched.append((rows.tolist(), seed))
        return everything.select(torch.from_numpy(rows))

    seeds = set()
    for step in range(3):
        draws = Fixed(np.arange(8), 0.3, [1, 0, 3, 2, 5, 4, 7, 6])  # partners stand in the same half
        object.__setattr__(draws, "seed", (0, 0, step))
        part = everything.select(torch.arange(4))
        part = Batch(part.inputs, part.labels, part.labels, part.ids, step=draws, positions=np.arange(4), load_rows=fetch)
        for kind in ("mixup", "manifold"):
            network = Told()
            build_view(ViewSettings(kind=kind), 3)(network, part)
            part.plain_output = None
    assert [rows for rows, _ in fetched] == [[1, 0, 3, 2]] * 6
    real = batch_of(torch.zeros(2, 1), [0, 0], load_rows=lambda rows, seed, taught: seeds.add(seed))
    view = build_view(ViewSettings(), 2)
    for step in range(5):
        real.step = StepContext(np.arange(2), (0, 0, step))
        view._load_partners(real, np.array([0]))
    assert len(seeds) == 5  # partners are cropped anew in every step


@pytest.mark.parametrize("layers", [(), (1,), (2,), (0,)])
def test_targets_are_mixed_wherever_examples_are(layers):
    torch.manual_seed(0)
    network = VectorNetwork(4, 3, hidden=(5, 6)).eval()
    batch = batch_of(
        torch.randn(6, 4), [0, 1, 2, 0, 1, 2], teacher_features=torch.randn(6, 2), teacher_logits=torch.randn(6, 3)
    )
    batch.required_inputs = frozenset({"teacher_features"})
    batch.step = Fixed(np.arange(6), 0.3, [5, 4, 3, 2, 1, 0])
    view = build_view(ViewSettings(kind="manifold", layers=layers), 3)(network, batch)
    one_hot = torch.eye(3)[batch.labels]
    torch.testing.assert_close(view.targets, 0.3 * one_hot + 0.7 * one_hot.flip(0))
    assert view.labels.tolist() == batch.labels.flip(0).tolist()  # of the heavier one
    torch.testing.assert_close(view.teacher_features, 0.3 * batch.teacher_features + 0.7 * batch.teacher_features.flip(0))


def test_boxes_are_drawn_for_each_image_where_they_should_be():
    pixels = torch.arange(16.0).view(16, 1, 1, 1).expand(16, 3, 32, 32).clone()
    batch = batch_of(pixels, [0] * 16, "pixels", step=StepContext(np.arange(16), (0, 0, 3)))
    network = Told()
    build_view(ViewSettings(kind="cutout", length=8), 2)(network, batch)
    holes = (network.shown[-1][0]["pixels"] == 0)[1:, 0].flatten(1)  # image 0 is all 0
    assert len({tuple(h.nonzero().squeeze(1).tolist()) for h in holes}) > 10
    for shares, distinct in (("batch", 1), ("sample", 8)):
        network = Told()
        settings = ViewSettings(kind="cutmix", shares=shares, alpha=8.0)
        view = build_view(settings, 16)(
            network, batch_of(pixels, list(range(16)), "pixels", step=StepContext(np.arange(16), (0, 0, 3)))
        )
        shown = network.shown[-1][0]["pixels"][:, 0]
        pasted = shown != pixels[:, 0]
        boxes_seen = {tuple(p.flatten().nonzero().squeeze(1).tolist()) for p in pasted if p.any()}
        assert len(boxes_seen) == 1 if distinct == 1 else len(boxes_seen) >= distinct
        area = pasted.flatten(1).float().mean(dim=1)
        own = view.targets[torch.arange(16), torch.arange(16)]
        moved = pasted.flatten(1).any(dim=1)
        torch.testing.assert_close(own[moved], 1 - area[moved])
