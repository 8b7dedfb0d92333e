"""Losses: goldens in value and gradient, properties that hold for all of LOSSES, and the degenerate cases."""

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from golden_cases import cases  # noqa: E402

from distilcal import InputError  # noqa: E402
from distilcal.losses import (  # noqa: E402
    LOSSES,
    AdaFocal,
    ContrastiveDistillation,
    CorrectnessRanking,
    ProgressiveSelfDistillation,
    acls,
    confidence_penalty,
    cpc,
    cross_entropy,
    kd,
    mbls,
    mmce_weighted,
    required_inputs,
    rkd,
    smooth_targets,
)
from distilcal.losses.memory import equal_mass_gaps  # noqa: E402

F = torch.float64
GOLDEN = Path(__file__).parents[1] / "golden"


def shared(file):
    return json.loads((GOLDEN / file).read_text(encoding="utf-8"))["shared_inputs"]


def leaf(values, dtype=F):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def number(value):
    return float(value.detach())


def check(value, wanted, grads, tolerance, subgradient=False, loosen=1.0):
    """Value and gradients against a golden, within its tolerance times ``loosen``."""
    rtol, atol = tolerance["rtol"] * loosen, tolerance["atol"] * loosen
    assert number(value) == pytest.approx(wanted, rel=rtol, abs=atol)
    if subgradient:
        return
    got = torch.autograd.grad(value, [leaf_ for leaf_, _ in grads], allow_unused=True)
    for (leaf_, expected), gradient in zip(grads, got, strict=True):
        gradient = torch.zeros_like(leaf_) if gradient is None else gradient
        expected = expected["full"] if isinstance(expected, dict) else expected
        np.testing.assert_allclose(gradient.double().numpy(), expected, rtol=rtol, atol=atol)


# Golden loss → the sum of terms that reproduces it.
CALIBRATION = {
    "cross_entropy": lambda z, y, p: cross_entropy(z, y),
    "label_smoothing_uniform": lambda z, y, p: cross_entropy(z, y, smoothing=p["alpha"]),
    "label_smoothing_offtarget": lambda z, y, p: cross_entropy(z, y, smoothing=p["alpha"], convention="offtarget"),
    "label_smoothing_offtarget_kl_sum": lambda z, y, p: (
        len(z) * (cross_entropy(z, y, smoothing=p["alpha"], convention="offtarget") - target_entropy(y, z.shape[1], p["alpha"]))
    ),
    "focal": lambda z, y, p: LOSSES["focal"](z, y, gamma=p["gamma"]),
    "flsd53": lambda z, y, p: LOSSES["flsd53"](z, y, gamma=p["gamma_above_half"]),
    "brier": lambda z, y, p: LOSSES["brier"](z, y),
    "mdca_only": lambda z, y, p: LOSSES["mdca"](z, y),
    "nll_plus_mdca": lambda z, y, p: cross_entropy(z, y) + p["beta"] * LOSSES["mdca"](z, y),
    "focal_plus_mdca": lambda z, y, p: LOSSES["focal"](z, y, gamma=p["gamma"]) + p["beta"] * LOSSES["mdca"](z, y),
    "dca_only": lambda z, y, p: LOSSES["dca"](z, y),
    "nll_plus_dca": lambda z, y, p: cross_entropy(z, y) + p["beta"] * LOSSES["dca"](z, y),
    "confidence_penalty": lambda z, y, p: cross_entropy(z, y) + p["beta"] * confidence_penalty(z),
    "confidence_penalty_mbls": lambda z, y, p: cross_entropy(z, y) + p["alpha"] * confidence_penalty(z, over_classes="mean"),
    "mbls": lambda z, y, p: cross_entropy(z, y) + p["alpha"] * mbls(z, margin=p["margin"]),
    "acls": lambda z, y, p: (
        cross_entropy(z, y) + p["alpha"] * acls(z, margin=p["margin"], positive=p["pos_lambda"], negative=p["neg_lambda"])
    ),
    "cpc_bdc": lambda z, y, p: cpc(z, y, discrimination=1.0, exclusion=0.0),
    "cpc_bec": lambda z, y, p: cpc(z, y, discrimination=0.0, exclusion=1.0),
    "mmce": lambda z, y, p: LOSSES["mmce"](z, y, width=p["kernel_width"]),
    "mmce_weighted": lambda z, y, p: mmce_weighted(z, y, width=p["kernel_width"], variant="author"),
    "mmce_weighted_paper": lambda z, y, p: mmce_weighted(z, y, width=p["kernel_width"]),
}


def target_entropy(labels, classes, alpha):
    q = smooth_targets(labels, classes, alpha, "offtarget", dtype=F)
    return -(q * q.log()).sum(dim=1).mean()


@pytest.mark.parametrize("name", cases("losses.json"))
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_calibration_goldens(name, dtype):
    case = cases("losses.json")[name]
    inputs = case["inputs"]
    inputs = shared("losses.json")[inputs["ref"]] if "ref" in inputs else inputs
    z, y = leaf(inputs["logits"], dtype), torch.tensor(inputs["labels"])
    value = CALIBRATION[case["params"]["loss"]](z, y, case["params"])
    expected = case["expected"]
    loosen = 1.0 if dtype == F else 1e5
    check(
        value, expected["value"], [(z, expected["grad_logits"])], case["tolerance"], expected.get("grad_is_subgradient"), loosen
    )


@pytest.mark.parametrize("name", cases("kd.json"))
def test_kd_goldens(name):
    case = cases("kd.json")[name]
    inputs, p, expected = shared("kd.json")[case["inputs"]["ref"]], case["params"], case["expected"]
    z, t, y = leaf(inputs["student_logits"]), leaf(inputs["teacher_logits"]), torch.tensor(inputs["labels"])
    kind = name.split(":")[0]
    if kind in ("kd_kl_t2", "scaled_kd"):
        reduction = "classes" if kind == "scaled_kd" else "batch"
        value = kd(z, t, temperature=p["T"], t_squared=p["t_squared"], reduction=reduction)
    elif kind == "p004_kd_total":
        value = p["alpha"] * kd(z, t, temperature=p["T"]) + (1 - p["alpha"]) * cross_entropy(z, y)
    elif kind == "p000_kd_total":
        soft = kd(z, t, temperature=p["tau_teacher_only"], student_temperature=1.0, t_squared=False)
        value = p["alpha_on_CE"] * cross_entropy(z, y) + (1 - p["alpha_on_CE"]) * soft
    elif kind == "p003_kd_total":
        soft = kd(z, t, temperature=p["tau"], student_temperature=1.0, t_squared=False)
        value = (1 - p["alpha_on_KD"]) * cross_entropy(z, y) + p["alpha_on_KD"] * soft
    else:
        assert kind == "p003_ls_as_kl"
        smooth = cross_entropy(z, y, smoothing=p["alpha"])
        assert number(smooth) == pytest.approx(expected["uniform_label_smoothing_value"])
        value = smooth - p["alpha"] * np.log(z.shape[1])
    check(value, expected["value"], [(z, expected["grad_student_logits"])], case["tolerance"])
    assert t.grad is None


@pytest.mark.parametrize("name", cases("rkd.json"))
def test_rkd_goldens(name):
    case = cases("rkd.json")[name]
    student, teacher = leaf(case["inputs"]["student_features"]), leaf(case["inputs"]["teacher_features"])
    expected, tolerance = case["expected"], case["tolerance"]
    assert number(rkd(student, teacher, distance=1, angle=0)) == pytest.approx(expected["distance_loss"], rel=1e-9)
    assert number(rkd(student, teacher, distance=0, angle=1)) == pytest.approx(expected["angle_loss"], rel=1e-9)
    check(rkd(student, teacher), expected["total"], [(student, expected["grad_student"])], tolerance)


@pytest.mark.parametrize("name", cases("p002_integrated.json"))
def test_p002_goldens(name):
    case = cases("p002_integrated.json")[name]
    i, p, expected = case["inputs"], case["params"], case["expected"]
    clean, mixed, teacher = leaf(i["student_logits_clean"]), leaf(i["student_logits_mixed"]), leaf(i["teacher_logits_clean"])
    y, perm = torch.tensor(i["labels"]), torch.tensor(i["perm"])
    eye = torch.eye(clean.shape[1], dtype=F)
    targets = p["lambda"] * eye[y] + (1 - p["lambda"]) * eye[y[perm]]
    soft = 2 * kd(clean, teacher, temperature=p["T"], t_squared=p["t_squared"], reduction="classes")
    value = p["alpha"] * soft + (1 - p["alpha"]) * cross_entropy(mixed, targets)
    grads = [(clean, expected["grad_clean"]), (mixed, expected["grad_mixed"])]
    check(value, expected["value"], grads, case["tolerance"])


@pytest.mark.parametrize("name", cases("crl.json"))
def test_crl_goldens(name):
    case = cases("crl.json")[name]
    p = case["params"]
    loss = CorrectnessRanking(case["inputs"]["n_data"], rank=p["rank_target"])
    # The released code writes log 10 with seven digits.
    tolerance = {"rtol": 1e-6, "atol": 1e-8} if p["rank_target"] == "entropy" else case["tolerance"]
    for step in case["expected"]["steps"]:
        loss.start_epoch(step["epoch"] - 1, 9)
        if step.get("end_of_epoch"):
            assert loss.times_right.tolist() == step["correctness_counts"]
            assert int(loss.most) == step["max_correctness_used"]
            continue
        z = leaf(step["logits"])
        ranking = loss(z, torch.tensor(step["labels"]), torch.tensor(step["indices"]))
        assert number(ranking) == pytest.approx(step["ranking_loss_unweighted"], rel=1e-6, abs=1e-9)
        total = cross_entropy(z, torch.tensor(step["labels"])) + p["rank_weight"] * ranking
        check(total, step["total_loss"], [(z, step["grad_logits"])], tolerance)


def test_pskd_golden():
    (case,) = cases("pskd.json").values()
    loss = ProgressiveSelfDistillation(
        case["inputs"]["n_data"], case["inputs"]["num_classes"], alpha=case["params"]["alpha_T"], dtype=F
    )
    for step in case["expected"]["steps"]:
        loss.start_epoch(step["epoch"], case["params"]["epochs"])
        assert float(loss.share) == pytest.approx(step["alpha_t"])
        z = leaf(step["logits"])
        value = loss(z, torch.tensor(step["labels"]), torch.tensor(step["indices"]))
        check(value, step["loss"], [(z, step["grad_logits"])], case["tolerance"])


@pytest.mark.parametrize("name", [n for n in cases("adafocal.json") if "bins" in n])
def test_adafocal_bins(name):
    case = cases("adafocal.json")[name]
    confidence, correct = np.array(case["inputs"]["confidences"]), np.array(case["inputs"]["correct"])
    bins = case["expected"]["bins"]
    edges, gap = equal_mass_gaps(confidence, correct, len(bins))
    np.testing.assert_allclose(edges[:-1], [b["lower"] for b in bins], rtol=1e-9)
    np.testing.assert_allclose(edges[1:], [b["upper"] for b in bins], rtol=1e-9)
    np.testing.assert_allclose(gap, [b["gap"] for b in bins], rtol=1e-9, atol=1e-11)
    loss = AdaFocal(bins=len(bins))
    loss.update(confidence, correct)
    np.testing.assert_allclose(loss.edges, edges)
    assert (loss.gamma.numpy() != 1).sum() == (gap != 0).sum()


@pytest.mark.parametrize("name", [n for n in cases("adafocal.json") if "gamma" in n])
def test_adafocal_gamma(name):
    case = cases("adafocal.json")[name]
    gaps = case["inputs"]["gaps_per_epoch"]
    loss = AdaFocal(bins=len(gaps[0]))
    for gap, expected in zip(gaps, case["expected"]["gamma_per_epoch"], strict=True):
        loss.step(torch.tensor(gap, dtype=F))
        np.testing.assert_allclose(loss.gamma, expected, rtol=1e-9)


@pytest.mark.parametrize("name", [n for n in cases("adafocal.json") if "loss" in n])
def test_adafocal_loss(name):
    case = cases("adafocal.json")[name]
    p, expected = case["params"], case["expected"]
    loss = AdaFocal(bins=len(p["gammas"]))
    loss.gamma.copy_(torch.tensor(p["gammas"], dtype=F))
    loss.edges.copy_(torch.tensor([low for low, _ in p["bin_edges"]] + [p["bin_edges"][-1][1]], dtype=F))
    z, y = leaf(case["inputs"]["logits"]), torch.tensor(case["inputs"]["labels"])
    own = torch.softmax(z.detach(), dim=1).gather(1, y[:, None]).squeeze(1)
    np.testing.assert_allclose(loss.gamma_of(own), expected["gamma_per_sample"])
    check(loss(z, y) * len(y), expected["value"], [(z, expected["grad_logits"])], case["tolerance"])  # the golden sums


def test_crd_golden():
    (case,) = cases("crd.json").values()
    i, p, expected = case["inputs"], case["params"], case["expected"]
    loss = ContrastiveDistillation(
        5, 6, torch.zeros(p["n_data"], dtype=torch.long), dim=p["feat_dim"], negatives=p["nce_k"], temperature=p["nce_t"]
    ).double()
    for linear, given in ((loss.embed_student, i["embed_s"]), (loss.embed_teacher, i["embed_t"])):
        linear.weight.data = torch.tensor(given["weight"], dtype=F)
        linear.bias.data = torch.tensor(given["bias"], dtype=F)
    loss.student_bank.copy_(torch.tensor(i["memory_student_init"], dtype=F))
    loss.teacher_bank.copy_(torch.tensor(i["memory_teacher_init"], dtype=F))
    for step in expected["steps"]:
        student, teacher = leaf(step["student_features"]), torch.tensor(step["teacher_features"], dtype=F)
        value = loss.contrast(student, teacher, torch.tensor(step["contrast_indices"]))
        assert float(loss.z_student) == pytest.approx(step["Z_student"], rel=1e-8)
        assert float(loss.z_teacher) == pytest.approx(step["Z_teacher"], rel=1e-8)
        grads = [
            (student, step["grad_student_features"]),
            (loss.embed_student.weight, step["grad_embed_s_weight"]),
            (loss.embed_teacher.weight, step["grad_embed_t_weight"]),
        ]
        check(value, step["loss"], grads, case["tolerance"])
    np.testing.assert_allclose(loss.student_bank, expected["memory_student_final"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(loss.teacher_bank, expected["memory_teacher_final"], rtol=1e-8, atol=1e-9)


# ---- properties of every loss ------------------------------------------------------------------------------------------


def batch(n=7, k=3, seed=0, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, k, generator=g, dtype=F)
    labels = torch.randint(0, k, (n,), generator=g)
    return {
        "logits": z,
        "labels": labels,
        "targets": labels,
        "ids": torch.arange(n),
        "features": torch.randn(n, 4, generator=g, dtype=F),
        "teacher_logits": scale * torch.randn(n, k, generator=g, dtype=F),
        "teacher_features": torch.randn(n, 5, generator=g, dtype=F),
    }


def make(name, b):
    """A loss ready to be called: modules are made for the batch, with something in their memory."""
    n, k = b["logits"].shape
    if name == "crl":
        loss = CorrectnessRanking(n)
        loss.times_right.copy_(torch.arange(n) % 3)
        loss.most.fill_(3)
        return loss.eval()
    if name == "pskd":
        loss = ProgressiveSelfDistillation(n, k, dtype=F)
        loss.start_epoch(1, 4)
        loss.last.copy_(torch.softmax(b["logits"].flip(1).to(F), dim=1))
        loss.seen.fill_(True)
        return loss.eval()
    if name == "adafocal":
        loss = AdaFocal(bins=4)
        loss.gamma.copy_(torch.tensor([2.0, -0.5, 0.4, 3.0], dtype=F))
        return loss
    if name == "crd":
        return ContrastiveDistillation(4, 5, b["labels"], dim=6, negatives=3).double().eval()
    return LOSSES[name]


def call(loss, b):
    return loss(*(b[name] for name in required_inputs(loss)))


STATELESS = sorted(set(LOSSES) - {"crl", "pskd", "adafocal", "crd"})
ON_LOGITS = sorted(name for name in LOSSES if "logits" in required_inputs(LOSSES[name]))


@pytest.mark.parametrize("name", sorted(LOSSES))
class TestEveryLoss:
    def test_is_documented_and_names_what_it_wants(self, name):
        assert inspect.getdoc(LOSSES[name])
        known = {"logits", "labels", "targets", "features", "teacher_logits", "teacher_features", "ids"}
        assert set(required_inputs(LOSSES[name])) <= known
        assert required_inputs(LOSSES[name])

    def test_gives_a_finite_scalar_and_gradient(self, name):
        for n, k in ((7, 3), (2, 2), (5, 11)):
            b = batch(n, k)
            if name == "crd" and (b["labels"] == b["labels"][0]).all():
                b["labels"][0] = (b["labels"][0] + 1) % k
            inputs = [b[x].requires_grad_() for x in ("logits", "features")]
            value = call(make(name, b), b)
            assert value.dim() == 0
            gradients = torch.autograd.grad(value, inputs, allow_unused=True)
            assert any(g is not None for g in gradients)
            for g in gradients:
                assert g is None or torch.isfinite(g).all()

    def test_teacher_labels_and_targets_get_no_gradient(self, name):
        b = batch()
        b["teacher_logits"].requires_grad_()
        b["teacher_features"].requires_grad_()
        b["logits"].requires_grad_()
        b["features"].requires_grad_()
        call(make(name, b), b).backward()
        assert b["teacher_logits"].grad is None
        assert b["teacher_features"].grad is None

    def test_every_row_said_twice_changes_nothing(self, name):
        if name in ("crd", "rkd", "crl"):
            return  # relations between the rows of a batch; crl's are between neighbours
        b = batch()
        twice = {key: torch.cat([value, value]) for key, value in b.items()}
        value = number(call(make(name, b), b))
        if name == "mmce_weighted":
            assert number(call(LOSSES[name], twice)) == pytest.approx(value)  # averages over pairs
        else:
            assert number(call(make(name, b), twice)) == pytest.approx(value)

    def test_classes_in_another_order_change_nothing(self, name):
        b = batch()
        order = torch.tensor([2, 0, 1])
        back = torch.argsort(order)
        moved = {**b, "logits": b["logits"][:, order], "teacher_logits": b["teacher_logits"][:, order]}
        moved["labels"] = moved["targets"] = back[b["labels"]]
        loss = make(name, b)
        if name == "crd":
            return  # it looks at features; classes only choose negatives, which are drawn
        expected = number(call(loss, b))
        if name == "pskd":
            loss.last.copy_(loss.last[:, order])
        assert number(call(loss, moved)) == pytest.approx(expected)

    def test_a_constant_added_to_all_logits_changes_nothing(self, name):
        if name == "acls" or name not in ON_LOGITS:
            return  # acls looks at the largest logit itself, as its paper's code does
        b = batch()
        moved = {**b, "logits": b["logits"] + 3.5, "teacher_logits": b["teacher_logits"] - 1.25}
        assert number(call(make(name, b), moved)) == pytest.approx(number(call(make(name, b), b)))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_half_precision_is_raised(self, name, dtype):
        b = batch()
        low = {k: v.to(dtype) if v.is_floating_point() else v for k, v in b.items()}
        single = {k: v.float() if v.is_floating_point() else v for k, v in low.items()}
        loss, same = make(name, b), make(name, b)
        if name == "crd":
            loss, same = loss.float(), same.float()
            same.load_state_dict(loss.state_dict())
        value = call(loss, low)
        assert value.dtype == torch.float32
        assert number(value) == pytest.approx(number(call(same, single)), rel=1e-6)


@pytest.mark.parametrize("name", ON_LOGITS)
@pytest.mark.parametrize(
    "case", ["one row", "two classes", "all right", "all wrong", "certain", "huge", "absent classes", "equal"]
)
def test_degenerate_batches_are_defined(name, case):
    b = batch(6, 4)
    if case == "one row":
        b = {k: v[:1] for k, v in b.items()}
    elif case == "two classes":
        b = batch(6, 2)
    elif case == "all right":
        b["labels"] = b["targets"] = b["logits"].argmax(dim=1)
    elif case == "all wrong":
        b["labels"] = b["targets"] = b["logits"].argmin(dim=1)
    elif case == "certain":
        b["labels"] = b["targets"] = b["logits"].argmax(dim=1)
        b["logits"] = 1000.0 * torch.eye(4, dtype=F)[b["labels"]]
    elif case == "huge":
        b["logits"] = 1e4 * torch.sign(b["logits"])
        b["teacher_logits"] = -1e4 * torch.sign(b["teacher_logits"])
    elif case == "absent classes":
        b["labels"] = b["targets"] = torch.zeros(6, dtype=torch.long)
    else:
        b["logits"] = torch.zeros(6, 4, dtype=F)
    b["logits"] = b["logits"].detach().requires_grad_()
    value = call(make(name, b), b)
    assert torch.isfinite(value)
    (gradient,) = torch.autograd.grad(value, [b["logits"]], allow_unused=True)
    assert gradient is None or torch.isfinite(gradient).all()


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9, 1.0, 2.5])
def test_focal_has_its_limit_at_certainty(gamma):
    z = leaf([[800.0, 0.0], [30.0, 0.0], [1.0, 0.0]])
    value = LOSSES["focal"](z, torch.tensor([0, 0, 0]), gamma=gamma)
    (gradient,) = torch.autograd.grad(value, z)
    assert torch.isfinite(gradient).all()
    assert gradient[0].abs().max() == 0
    assert torch.autograd.gradcheck(lambda x: LOSSES["focal"](x, torch.tensor([0]), gamma=gamma), (leaf([[1.0, 0.2, -1.0]]),))


@pytest.mark.parametrize("name", [n for n in STATELESS if n not in ("mdca", "dca", "mbls", "acls", "flsd53", "rkd", "kd")])
def test_smooth_losses_pass_gradcheck(name):
    b = batch()

    def of(z):
        return call(LOSSES[name], {**b, "logits": z})

    assert torch.autograd.gradcheck(of, (b["logits"].clone().requires_grad_(),))


def test_small_batches_add_up_to_the_large_one():
    b = batch(12, 3)
    for name in ("cross_entropy", "focal", "brier", "kd", "cpc", "mbls", "acls", "confidence_penalty", "flsd53"):
        whole = number(call(LOSSES[name], b))
        parts = [number(call(LOSSES[name], {k: v[i : i + 4] for k, v in b.items()})) for i in (0, 4, 8)]
        assert np.mean(parts) == pytest.approx(whole), name


def test_cross_entropy_takes_labels_one_hot_and_soft_targets():
    b = batch()
    eye = torch.eye(3, dtype=F)
    for smoothing in (0.0, 0.2):
        for convention in ("uniform", "offtarget"):
            hard = cross_entropy(b["logits"], b["labels"], smoothing=smoothing, convention=convention)
            soft = cross_entropy(b["logits"], eye[b["labels"]], smoothing=smoothing, convention=convention)
            assert float(hard) == pytest.approx(float(soft))
    uniform = cross_entropy(b["logits"], b["labels"], smoothing=0.3)
    offtarget = cross_entropy(b["logits"], b["labels"], smoothing=0.3 * 2 / 3, convention="offtarget")
    assert float(uniform) == pytest.approx(float(offtarget))
    torch_own = torch.nn.functional.cross_entropy(b["logits"], b["labels"], label_smoothing=0.3)
    assert float(uniform) == pytest.approx(float(torch_own))


def test_cpc_chunks_change_nothing(monkeypatch):
    b = batch(9, 5)
    whole = float(cpc(b["logits"], b["labels"]))
    monkeypatch.setattr("distilcal.losses.calibration.PAIR_ENTRIES", 50)
    assert float(cpc(b["logits"], b["labels"])) == pytest.approx(whole)


def test_kd_of_impossible_classes_is_finite():
    teacher = torch.tensor([[0.0, -1e9, 1.0]], dtype=F)
    z = leaf([[0.3, 0.2, 0.1]])
    (gradient,) = torch.autograd.grad(kd(z, teacher, temperature=2.0), z)
    assert torch.isfinite(gradient).all()
    assert float(kd(teacher, teacher)) == 0


def test_settings_that_make_no_sense_are_refused():
    b = batch()
    for bad in (
        lambda: kd(b["logits"], b["teacher_logits"], temperature=0),
        lambda: kd(b["logits"], b["teacher_logits"], reduction="sum"),
        lambda: cross_entropy(b["logits"], b["labels"], smoothing=0.1, convention="other"),
        lambda: mmce_weighted(b["logits"], b["labels"], variant="other"),
        lambda: CorrectnessRanking(4, rank="other"),
    ):
        with pytest.raises(InputError):
            bad()


@pytest.mark.parametrize("name", ["crl", "pskd", "adafocal", "crd"])
def test_memory_is_saved_and_goes_on_the_same(name):
    b = batch(8, 3)
    loss = make(name, b).train()
    call(loss, b)
    other = make(name, b).train()
    other.load_state_dict(loss.state_dict())
    for _ in range(3):
        assert number(call(loss, b)) == number(call(other, b))


def test_crd_draws_from_other_classes_without_replacement():
    labels = torch.arange(40) % 4
    loss = ContrastiveDistillation(4, 5, labels, dim=6, negatives=20)
    drawn = loss.draw(torch.arange(8))
    for row, own in zip(drawn, labels[:8], strict=True):
        assert len(set(row.tolist())) == 20
        assert (labels[row] != own).all()
    few = ContrastiveDistillation(4, 5, labels, dim=6, negatives=200)
    assert few.draw(torch.arange(3)).shape == (3, 200)
