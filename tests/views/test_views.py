"""Views: the right examples are mixed with the right targets, as the papers' code does it."""

import numpy as np
import pytest
from golden_cases import cases

torch = pytest.importorskip("torch")

from mixing_cases import Fixed, Told, batch_of, dynamics_of  # noqa: E402

from distilcal.config.schema import ViewSettings  # noqa: E402
from distilcal.losses import LOSSES, cross_entropy  # noqa: E402
from distilcal.views import build_term, build_view, plain, select_kept_rows  # noqa: E402
from distilcal.views.mixing import box_mask, boxes  # noqa: E402

GOLDEN = cases("augment.json")
SALIENT = {k: v for k, v in cases("aum_saliency_mixup.json").items() if not k.startswith("aum:")}
EASY_AMBIGUOUS = cases("data_maps.json")["easy_ambiguous_mixup:B4_K3"]


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
