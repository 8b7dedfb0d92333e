"""Losses: properties that hold for all of LOSSES, and the degenerate cases."""

import inspect
from collections import Counter
from itertools import combinations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from loss_cases import F, leaf, number  # noqa: E402

from distilcal import InputError  # noqa: E402
from distilcal.losses import (  # noqa: E402
    LOSSES,
    AdaFocal,
    ContrastiveDistillation,
    CorrectnessRanking,
    ProgressiveSelfDistillation,
    confidence_penalty,
    cpc,
    cross_entropy,
    hard_kd,
    kd,
    mmce,
    mmce_weighted,
    required_inputs,
)
from distilcal.views import build_term  # noqa: E402


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
    for name in ("cross_entropy", "focal", "brier", "kd", "hard_kd", "cpc", "mbls", "acls", "confidence_penalty", "flsd53"):
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


def test_hard_kd_is_cross_entropy_with_the_teachers_answers():
    b = batch(9, 5)
    answers = b["teacher_logits"].argmax(dim=1)
    value = hard_kd(b["logits"], b["teacher_logits"])
    assert float(value) == pytest.approx(float(cross_entropy(b["logits"], answers)))
    # The teacher's confidence is lost.
    assert float(hard_kd(b["logits"], 10 * b["teacher_logits"])) == float(value)


def test_settings_that_make_no_sense_are_refused():
    b = batch()
    for bad in (
        lambda: kd(b["logits"], b["teacher_logits"], temperature=0),
        lambda: kd(b["logits"], b["teacher_logits"], temperature=float("inf")),
        lambda: kd(b["logits"], b["teacher_logits"], reduction="sum"),
        lambda: cross_entropy(b["logits"], b["labels"], smoothing=10),
        lambda: cross_entropy(b["logits"], b["labels"], smoothing=-0.1),
        lambda: confidence_penalty(b["logits"], over_classes="max"),
        lambda: mmce(b["logits"], b["labels"], width=0),
        lambda: cross_entropy(b["logits"], b["labels"], smoothing=0.1, convention="other"),
        lambda: mmce_weighted(b["logits"], b["labels"], variant="other"),
        lambda: CorrectnessRanking(4, rank="other"),
    ):
        with pytest.raises(InputError):
            bad()


NUMBERS = [
    (name, p.name)
    for name, loss in LOSSES.items()
    for p in inspect.signature(loss).parameters.values()
    if p.kind is p.KEYWORD_ONLY and (p.name == "student_temperature" or type(p.default) in (int, float))
]


@pytest.mark.parametrize(("name", "setting"), NUMBERS, ids="-".join)
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), -float("inf"), 1e300, "1", True, [1.0]], ids=repr)
def test_numbers_outside_of_their_range_are_refused_by_name(name, setting, value):
    if (setting, value) == ("lowest", -1):
        pytest.skip("the lowest gamma of AdaFocal is the only number that may be negative")
    b = batch()
    n, k = b["logits"].shape
    context = {"n_data": n, "classes": k, "labels": b["labels"], "features": 4, "teacher_features": 5}
    with pytest.raises(InputError, match=rf"^(\w+: )?{setting}: "):
        call(build_term(name, settings={setting: value}, context=context).loss, b)


@pytest.mark.parametrize("name", LOSSES)
def test_labels_and_teachers_of_another_shape_are_refused(name):
    """Torch would repeat a column of labels, or compute a mean over fewer rows, and give a number that means nothing."""
    b = batch()
    labels, teacher = b["labels"], b["teacher_logits"]
    odd = [("labels", value) for value in (labels[:, None], labels[:-1], labels[0], labels - 1)]
    odd += [("targets", value) for value in (labels[:, None], labels[:-1], b["logits"].softmax(dim=1)[:1])]
    odd += [("teacher_logits", value) for value in (teacher[:1], teacher[:, :1], teacher[:, :2])]
    inputs = required_inputs(LOSSES[name])
    for argument, value in odd:
        if argument in inputs:
            loss = make(name, b)
            if isinstance(loss, torch.nn.Module):
                loss.train()
            with pytest.raises((InputError, RuntimeError, IndexError, ValueError)):
                loss(*[value if key == argument else b[key] for key in inputs])


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


def test_crd_draws_all_sets_of_negatives_alike_and_rows_by_themselves():
    labels = torch.tensor([2, 0, 0, 7, 7, 7])  # for row 0: two of the other five, ten sets
    loss = ContrastiveDistillation(4, 5, labels, dim=6, negatives=2)
    drawn = [loss.draw(torch.tensor([0, 0])) for _ in range(2000)]
    sets = [tuple(tuple(sorted(row)) for row in pair.tolist()) for pair in drawn]
    for row in (0, 1):
        counts = Counter(pair[row] for pair in sets)
        assert set(counts) == set(combinations(range(1, 6), 2))
        assert sum((n - 200) ** 2 / 200 for n in counts.values()) < 27.9  # chi-squared with 9 degrees of freedom, p = 0.001
    assert sum(first == second for first, second in sets) == pytest.approx(200, abs=60)  # equal by chance only
