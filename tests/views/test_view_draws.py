"""Views: random numbers, partners, targets and teachers are those of the whole step."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from mixing_cases import Fixed, Told, batch_of, dynamics_of  # noqa: E402

from distilcal.config.schema import ViewSettings  # noqa: E402
from distilcal.models.network import VectorNetwork  # noqa: E402
from distilcal.views import Batch, StepContext, build_view, plain, select_kept_rows  # noqa: E402

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
