"""The shipped recipes of P000, P001 and P002, whole, on tiny data: who was mixed with whom, where, to what targets."""

import csv
import json
from importlib.resources import files

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file
from tiny import BAD, GOOD, REST, save_model, write_csv

from distilcal.cli.main import main
from distilcal.config.loading import load_recipe
from distilcal.data import read_dataset
from distilcal.dynamics import Recorder, aum_halves, load_dynamics, random_halves, regions, saliency
from distilcal.models import load_classifier
from distilcal.models.image import build_image_network
from distilcal.models.network import Mix, fold_temperature
from distilcal.pipeline import plan, run_recipe
from distilcal.training.batches import BatchSource
from distilcal.views import Mixing
from distilcal.views.mixing import boxes

NAMES = ["down", "mixed", "up"]


def three_classes(path, count, seed):
    """Made-up reviews that praise, blame, or do both; a few of them are labelled at random."""
    rng = np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        for i in range(count):
            kind = int(rng.integers(0, 3))
            good, bad = rng.choice(GOOD, 2).tolist(), rng.choice(BAD, 2).tolist()
            words = [bad, [good[0], bad[0]], good][kind] + rng.choice(REST, rng.integers(2, 6)).tolist()
            label = kind if rng.random() < 0.9 else int(rng.integers(0, 3))
            writer.writerow([f"e{seed}-{i}", " ".join(rng.permutation(words)), NAMES[label]])
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixing")
    three_classes(folder / "train.csv", 260, 0)
    three_classes(folder / "other.csv", 60, 1)
    save_model(folder / "encoder", head=False, num_hidden_layers=6)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 240)
    pixels = (rng.integers(0, 100, (240, 32, 32, 3)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=labels, classes=np.array(NAMES))
    body = build_image_network("resnet8", 3)
    save_file({name: value.contiguous() for name, value in body.state_dict().items()}, folder / "teacher.safetensors")
    return folder


class Seen:
    """What every mixing view was given and made, by stage; the network is asked again for what it says about each example."""

    def __init__(self, monkeypatch):
        self.calls, self.asked, call, ask = [], [], Mixing.__call__, BatchSource.run_teacher

        def spying(view, network, batch):
            made = call(view, network, batch)
            with torch.no_grad():
                rows, keep = view.pairs(network, batch, view.number) if view.settings.kind != "cutout" else (None, None)
                self.calls.append(self.facts(view, network, batch, made, rows, keep))
            return made

        def asking(source, inputs, mix=None):
            self.asked.append((inputs, mix))
            return ask(source, inputs, mix)

        monkeypatch.setattr(Mixing, "__call__", spying)
        monkeypatch.setattr(BatchSource, "run_teacher", asking)

    @staticmethod
    def facts(view, network, batch, made, rows, keep):
        found = {"view": view, "rows": batch.rows, "partners": rows, "keep": keep, "made": made, "batch": batch}
        if rows is not None:
            found["share"] = view.shares(batch)
            found["other"] = batch.load_rows(rows, 0, False)
            found["own_said"], found["other_said"] = network(batch.inputs), network(found["other"].inputs)
            if view.settings.kind == "mixup" and "input_ids" in batch.inputs:
                mix = Mix(found["share"], other=found["other"].inputs)
                found["mixed_said"] = network(batch.inputs, mix=mix)
        return found


def check_targets(call, classes=3):
    share = call["share"][:, None]
    own, other = (torch.eye(classes)[call[k].labels] for k in ("batch", "other"))
    torch.testing.assert_close(call["made"].targets, torch.where(torch.from_numpy(call["keep"])[:, None],
                               share * own + (1 - share) * other, own))  # fmt: skip


def check_features(call):
    """Mixed where the head reads, and the logits are the head's answer."""
    share, keep = call["share"][:, None], call["keep"]
    for name in ("features", "logits"):
        mixed = share * getattr(call["own_said"], name) + (1 - share) * getattr(call["other_said"], name)
        torch.testing.assert_close(getattr(call["made"], name)[keep], mixed[keep], atol=1e-4, rtol=1e-3)


SHRUNK = [
    "data.limit=0",
    "data.limit_test=0",
    "stages.map.model.dropout=0.0",
    "stages.map.train.epochs=2",
    "stages.map.train.lr=0.003",
]


def carried_out(name, place, out, changes, stages=None):
    path = files("distilcal").joinpath("config", "recipes", f"{name}.toml")
    data = [f"data.train={str(place / 'train.csv')!r}", f"data.ood=[{str(place / 'other.csv')!r}]"]
    recipe = load_recipe(path, [*data, *changes])
    if stages is not None:
        recipe = recipe.replace(stages={name: recipe.stages[name] for name in stages})
    run_recipe(recipe, out / "run", out / "store")
    return recipe, json.loads((out / "run" / "metrics.json").read_text())


@pytest.mark.slow
def test_informed_mixup(place, tmp_path, monkeypatch):
    """P000: easy × ambiguous at the features, all terms of the teacher smoothed, students without any of it."""
    seen = Seen(monkeypatch)
    changes = [*SHRUNK, f"stages.map.model.name={str(place / 'encoder')!r}"]
    recipe, facts = carried_out("informed_mixup", place, tmp_path, changes)
    assert list(facts["stages"]) == ["map", "teacher", "mixup", "plain-student", "self-student", "student", "baseline"]
    table = load_dynamics(tmp_path / "run" / "map" / "dynamics")
    train = {i: n for n, i in enumerate(read_ids(recipe, tmp_path))}
    assert set(table.ids.tolist()) == set(train)
    assert (table.epochs == 2).all()
    found = regions(table, disjoint=True)  # rows of the table
    easy, ambiguous = ({train[str(i)] for i in table.ids[found[k]]} for k in ("easy", "ambiguous"))
    informed = [c for c in seen.calls if c["view"].settings.pairs == "regions"]
    random = [c for c in seen.calls if c["view"].settings.pairs == "random"]
    steps = 2 * -(-len(train) // 32)
    assert len(informed) == len(random) == steps
    pairs = 0
    for call in informed:
        for row, other, has in zip(call["rows"].tolist(), call["partners"].tolist(), call["keep"].tolist(), strict=True):
            assert has == (row in easy | ambiguous)
            if has:
                pairs += 1
                assert (row in easy and other in ambiguous) or (row in ambiguous and other in easy)
        assert torch.equal(call["made"].keep, torch.from_numpy(call["keep"]))
    assert pairs == 2 * len(easy | ambiguous)  # every one of them once an epoch
    assert not easy & ambiguous
    for call in informed + random:
        check_targets(call)
    for call in informed:
        check_features(call)
    for call in random:  # at the input embeddings, and nothing beside the mixes is learned
        torch.testing.assert_close(call["made"].logits, call["mixed_said"].logits, atol=1e-4, rtol=1e-3)
    assert [term.view for term in recipe.stages["mixup"].terms] == ["mixed"]
    # The teacher's terms are smoothed as the paper does it, the students' are not, and learn at the teacher's temperature.
    assert all(t.settings == {"smoothing": 0.1, "convention": "offtarget"} for t in recipe.stages["teacher"].terms)
    for name in ("self-student", "student"):
        stage = recipe.stages[name]
        assert stage.scale_teacher
        assert stage.teacher == "teacher"
        assert not stage.views
        assert [t.settings.get("smoothing", 0) for t in stage.terms] == [0, 0]
    assert facts["stages"]["student"]["parameters"] < facts["stages"]["self-student"]["parameters"]


def read_ids(recipe, tmp_path):
    from distilcal.data.splits import read_splits

    return read_splits(recipe.data).train.ids.tolist()


@pytest.mark.slow
def test_aum_saliency(place, tmp_path, monkeypatch):
    """P001: the most similar and most dissimilar of the other AUM half; baselines and ablations differ as they are said to."""
    seen = Seen(monkeypatch)
    changes = [*SHRUNK, f"stages.map.model.name={str(place / 'encoder')!r}", "stages.map.train.epochs=1"]
    recipe, facts = carried_out("aum_saliency", place, tmp_path, changes)
    ids = read_ids(recipe, tmp_path)
    assert recipe.stages["ours"].terms[0].weight == 0.8
    assert len(facts["stages"]) == 10 + 1  # the baseline
    table = load_dynamics(tmp_path / "run" / "map" / "dynamics")
    place_of = {str(i): n for n, i in enumerate(table.ids.tolist())}
    rows = np.array([place_of[i] for i in ids])
    high, salient = aum_halves(table)[rows], saliency(np.asarray(table.logits), table.labels)[rows].astype(np.float64)
    unit = salient / np.linalg.norm(salient, axis=1, keepdims=True)
    kinds = {}
    for call in seen.calls:
        s = call["view"].settings
        kinds.setdefault((s.kind, s.pairs, s.candidates, s.halves == "random"), []).append(call)
    per_stage = -(-len(ids) // 32)
    expected = {
        ("manifold", "similar", "all", False): 3,  # ours, smoothed, without dissimilar
        ("manifold", "dissimilar", "all", False): 3,
        ("manifold", "similar", "all", True): 1,
        ("manifold", "dissimilar", "all", True): 1,
        ("manifold", "halves", "all", False): 1,
        ("mixup", "random", "all", False): 1,
        ("manifold", "random", "all", False): 1,
        ("manifold", "similar", "batch", False): 1,
        ("manifold", "dissimilar", "batch", False): 1,
    }
    assert {k: len(v) for k, v in kinds.items()} == {k: v * per_stage for k, v in expected.items()}
    by_chance = random_halves(table, recipe.seed)[rows]
    for (kind, pairs, candidates, at_random), calls in kinds.items():
        half = by_chance if at_random else high
        for call in calls:
            own, other = call["rows"], call["partners"]
            if pairs != "random":
                assert (half[own] != half[other]).all()
                assert abs(half[own].mean() - 0.5) < 0.15  # halves are spread over the batches
            if pairs in ("similar", "dissimilar") and candidates == "all":
                cosine = unit[own] @ unit.T
                cosine[half[own][:, None] == half[None]] = -np.inf if pairs == "similar" else np.inf
                best = cosine.max(axis=1) if pairs == "similar" else cosine.min(axis=1)
                np.testing.assert_allclose(cosine[np.arange(len(own)), other], best, atol=1e-5)
            if kind == "manifold":
                check_features(call)
            else:
                torch.testing.assert_close(call["made"].logits, call["mixed_said"].logits, atol=1e-4, rtol=1e-3)
            if call["view"].settings.variant == "paper":
                check_targets(call)


@pytest.mark.slow
@pytest.mark.parametrize("augment", [True, False])
def test_calibrated_student(place, tmp_path, monkeypatch, augment):
    """The teacher sees clean images only, the student clean and changed ones; with their controls, seventeen students."""
    seen = Seen(monkeypatch)
    teacher = {"name": "resnet8", "weights": str(place / "teacher.safetensors"), "labels": NAMES, "mean": [0.5, 0.5, 0.5]}
    table = ", ".join(f"{k} = {v!r}" for k, v in teacher.items())
    changes = [
        f"data.train={str(place / 'images.npz')!r}",
        "data.ood=[]",
        "data.limit=90",
        "data.limit_test=0",
        "data.corrupt=['frost:2']",
        f"stages.teacher.model={{{table}}}",
        "stages.alone.model.name='resnet8'",
        f"stages.alone.model.augment={str(augment).lower()}",
        "stages.alone.train.epochs=1",
        "stages.alone.train.batch=64",  # two steps
        "stages.alone.train.lr=0.01",
    ]
    some = ["teacher", "kd-cutout", "rkd-mixup", "crd-cutmix"] if augment else None
    recipe, facts = carried_out("calibrated_student", place, tmp_path, changes, some)
    assert len(facts["stages"]) == (4 if augment else 18)
    assert "frost-2" in facts["stages"]["kd-cutout"]["sets"]
    by_kind = {}
    for call in seen.calls:
        by_kind.setdefault(call["view"].settings.kind, []).append(call)
    assert {k: len(v) for k, v in by_kind.items()} == dict.fromkeys(("cutout", "mixup", "cutmix"), 2 if augment else 8)
    for call in by_kind["mixup"]:
        assert np.array_equal(np.sort(call["rows"]), np.sort(call["partners"]))  # a permutation of the batch
        check_targets(call)
    for call in by_kind["cutmix"]:
        if (call["share"] == 1).all():  # every second batch is left as it is
            assert torch.equal(call["made"].targets, torch.eye(3)[call["batch"].labels])
            continue
        own, other = (torch.eye(3)[call[k].labels] for k in ("batch", "other"))
        _, _, left = boxes(
            call["share"].numpy(),
            call["view"]._rng_of_boxes(call["batch"]).integers((32, 32), size=(len(own), 2))[[0] * len(own)],
            32,
            32,
        )
        left = torch.from_numpy(left).float()[:, None]
        torch.testing.assert_close(call["made"].targets, left * own + (1 - left) * other)
    if augment:  # the teacher is run on what the student sees of the clean images, once a step
        assert len(seen.asked) >= 6
        clean = [c["batch"].inputs["pixels"] for calls in by_kind.values() for c in calls]
        for pixels in clean:
            assert any(p["pixels"].shape == pixels.shape and torch.equal(p["pixels"], pixels) for p, _ in seen.asked)
        assert all(mix is None for _, mix in seen.asked)
        return
    assert not seen.asked  # its outputs were computed once
    # 0.5 · distillation + 0.5 · cross-entropy; with pairs both partners are distilled, which doubles scaled KD
    weights = {name: [t.weight for t in stage.terms] for name, stage in recipe.stages.items() if stage.teacher}
    assert weights["kd"] == weights["kd-cutout"] == [0.5, 0.5]
    assert weights["kd-mixup"] == weights["kd-cutmix"] == [0.5, 1.0]
    assert weights["crd-mixup"] == weights["vanilla"] == [0.5, 0.5]
    assert all(term.settings["t_squared"] for stage in recipe.stages.values() for term in stage.terms if term.loss == "kd")
    assert not recipe.stages["alone-mixup"].teacher


def test_a_frozen_encoder_is_mixed_at_its_features(place, tmp_path, monkeypatch):
    seen = Seen(monkeypatch)
    changes = [*SHRUNK, f"stages.map.model={{name={str(place / 'encoder')!r}, frozen=true, hidden=[8]}}"]
    changes += ["stages.student.model.layers=[0]", "stages.mixup.views.mixed.kind=manifold"]
    _, facts = carried_out("informed_mixup", place, tmp_path, changes)
    assert facts["stages"]["teacher"]["epochs"] == 2
    calls = [c for c in seen.calls if c["view"].settings.pairs == "regions"]
    assert calls
    for call in calls:
        assert call["made"].features.shape[1] == 8
        check_features(call)
        check_targets(call)


@pytest.mark.slow
def test_a_map_of_anybody_s_loop_serves(place, tmp_path):
    """A map that ``Recorder`` left in a folder in place of a stage."""
    path = files("distilcal").joinpath("config", "recipes", "informed_mixup.toml")
    changes = [*SHRUNK, f"stages.map.model.name={str(place / 'encoder')!r}", f"data.train={str(place / 'train.csv')!r}"]
    changes += ["data.ood=[]", f"stages.teacher.map={str(tmp_path / 'map')!r}", "stages.map.train.epochs=1"]
    data = read_dataset(place / "train.csv")
    recorder = Recorder(data.ids, data.labels, data.classes)
    rng = np.random.default_rng(0)
    for _ in range(3):
        recorder.record(np.arange(len(data)), rng.normal(size=(len(data), 3)))
        recorder.end_epoch()
    recorder.dynamics().save(tmp_path / "map")
    run_recipe(load_recipe(path, changes), tmp_path / "run", tmp_path / "store")
    first = json.loads((tmp_path / "run" / "metrics.json").read_text())["stages"]["teacher"]["key"]
    done = CliRunner().invoke(main, ["run", str(path), *[a for c in changes for a in ("--set", c)], "--dry-run",
                                     "--store", str(tmp_path / "store")])  # fmt: skip
    assert f"teacher: in the store: 1·cross_entropy, 1·cross_entropy (mixed) [{first}]" in done.output


def test_a_large_record_is_kept_in_files_and_is_the_same(place, tmp_path, monkeypatch):
    tables = []
    for name, limit in (("memory", 1 << 28), ("files", 0)):
        monkeypatch.setattr("distilcal.pipeline.views.IN_MEMORY", limit)
        (tmp_path / "r.toml").write_text(BASE.format(train=str(place / "train.csv"), encoder=str(place / "encoder")))
        recipe = load_recipe(tmp_path / "r.toml", ["stages.map.record_features=true"])
        recipe = recipe.replace(stages={"map": recipe.stages["map"]})
        run_recipe(recipe, tmp_path / name, tmp_path / f"{name}-store")
        tables.append(load_dynamics(tmp_path / name / "map" / "dynamics"))
        assert not list((tmp_path / f"{name}-store" / "work").iterdir())
    assert isinstance(tables[1].feature_saliency, np.memmap)  # and read from files
    for column in ("confidence", "variability", "aum", "logits", "feature_saliency", "ids"):
        np.testing.assert_array_equal(getattr(tables[0], column), getattr(tables[1], column))


def test_a_stage_is_named_by_its_map_and_its_views(place, tmp_path):
    (tmp_path / "r.toml").write_text(BASE.format(train=str(place / "train.csv"), encoder=str(place / "encoder")))
    data = read_dataset(place / "train.csv")
    for seed in (1, 2):
        recorder = Recorder(data.ids, data.labels, data.classes)
        recorder.record(np.arange(len(data)), np.random.default_rng(seed).normal(size=(len(data), 3)))
        recorder.dynamics().save(tmp_path / f"map{seed}")
    keys = {}
    for change in (
        "stages.student.calibrate='none'",  # after training
        "stages.map.train.epochs=2",
        f"stages.student.map={str(tmp_path / 'map1')!r}",
        f"stages.student.map={str(tmp_path / 'map2')!r}",
        "stages.student.views.mixed.alpha=0.3",
        "stages.student.views.mixed.candidates='batch'",
    ):
        made = plan(load_recipe(tmp_path / "r.toml", [change]), tmp_path / "store")
        keys[change] = made.stages[-1].key
    assert len(set(keys.values())) == 6
    plain = plan(load_recipe(tmp_path / "r.toml"), tmp_path / "store").stages[-1].key
    assert [change for change, key in keys.items() if key == plain] == ["stages.student.calibrate='none'"]


def test_a_live_teacher_is_asked_about_mixes_at_the_temperature_that_suits_dev(place, tmp_path, monkeypatch):
    """``teacher = "mixed"``: the cached word for plain images, a live one for mixed ones, both divided alike."""
    seen = Seen(monkeypatch)
    teacher = f"{{name = 'resnet8', weights = {str(place / 'teacher.safetensors')!r}, labels = {NAMES!r}}}"
    (tmp_path / "r.toml").write_text(f"""
[data]
train = {str(place / "images.npz")!r}
[stages.teacher]
model = {teacher}
[stages.student]
model = {{ name = "resnet8", augment = false }}
train = {{ epochs = 1, optimizer = "sgd", lr = 0.01 }}
teacher = "teacher"
scale_teacher = true
views = {{ mixed = {{ kind = "mixup", teacher = "mixed" }} }}
terms = [{{ loss = "kd" }}, {{ loss = "kd", view = "mixed" }}]
""")
    temperature = []
    monkeypatch.setattr(
        "distilcal.pipeline.teacher.fold_temperature", lambda n, t: (temperature.append(t), fold_temperature(n, t))
    )
    run_recipe(load_recipe(tmp_path / "r.toml"), tmp_path / "run", tmp_path / "store")
    (divided,) = temperature
    assert divided != 1.0
    network = load_classifier(tmp_path / "run" / "teacher" / "model").network
    assert len(seen.asked) == len(seen.calls) > 0
    for call, (inputs, mix) in zip(seen.calls, seen.asked, strict=True):
        assert mix is None
        share = call["share"].view(-1, 1, 1, 1)
        expected = share * call["batch"].inputs["pixels"] + (1 - share) * call["other"].inputs["pixels"]
        torch.testing.assert_close(inputs["pixels"], expected)
        with torch.no_grad():
            said, plainly = network({"pixels": expected}).logits, network({"pixels": call["batch"].inputs["pixels"]}).logits
        torch.testing.assert_close(call["made"].teacher_logits, said / divided, atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(call["batch"].teacher_logits, plainly / divided, atol=1e-4, rtol=1e-3)


# ---- refused -----------------------------------------------------------------------------------------------------------

BASE = """
name = "small"
[data]
train = {train!r}
[stages.map]
model = {{ name = {encoder!r}, head = "new" }}
train = {{ epochs = 1, lr = 0.005 }}
terms = [{{ loss = "cross_entropy" }}]
record = true
[stages.student]
like = "map"
record = false
map = "map"
views = {{ mixed = {{ kind = "manifold", pairs = "regions" }} }}
terms = [{{ loss = "cross_entropy" }}, {{ loss = "cross_entropy", view = "mixed" }}]
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("stages.student.map=''", "pairs = 'regions' needs a map; add map ="),
        ("stages.map.record=false", "uses the map of 'map', which records none; add record = true"),
        ("stages.student.map='nowhere'", "depends on 'nowhere', which is not a stage"),
        ("stages.student.map='./nowhere'", "there is no map in it"),
        ("stages.student.views.mixed.fraction=0.001", "has 0 of 182 examples, too few to pair; raise fraction"),
        ("stages.student.views.mixed.kind='cutmix'", "cutmix cuts images, the data hold texts"),
        ("stages.student.views.mixed={kind='cutout'}", "cutout cuts images, the data hold texts"),
        (
            "stages.student.views.mixed.regions=['easy', 'odd']",
            "regions[1] = 'odd', expected one of 'easy', 'ambiguous', 'hard'",
        ),
        ("stages.student.views.mixed={kind='manifold', layers=[9]}", "the network has 6 layers"),
        (
            "stages.student.views.mixed={kind='manifold', regions=['easy', 'hard']}",
            "regions has no effect with kind = 'manifold'",
        ),
        ("stages.student.views.mixed={kind='mixup', length=4}", "length has no effect"),
        ("stages.student.views.mixed={kind='manifold', pairs='similar', saliency='features'}", "add record_features = true"),
        ("stages.student.terms=[{loss='cross_entropy'}, {loss='focal', view='mixed'}]", "focal needs one label"),
        ("stages.student.like=['map']", "is not another stage"),
        ("stages.student.views.mixed.layers=[1]", "a hidden layer mixes examples of one batch"),
        ("stages.student.views.mixed.kindd='x'", "unknown key stages.student.views.mixed.kindd; did you mean kind?"),
        (
            "stages.student.views.mixed={kind='manifold', pairs='similar', variant='author_code'}",
            "pairs examples by saliency in a batch",
        ),
        ("stages.student.views.mixed.teacher='mixed'", "a teacher cannot see what is mixed inside the student"),
        ("stages.student.views.other={kind='mixup'}", "views.other is used by no term"),
        ("stages.student.terms=[{loss='cross_entropy', view='mixd'}]", "views.mixed is used by no term"),
        ("stages.student.model.frozen=true", ""),
        ("stages.student.like='student'", "is not another stage"),
        ("stages.map.terms=[{loss='cross_entropy', view='manifold'}]", "no term on the plain view to record"),
    ],
)
def test_what_cannot_be_mixed_is_one_line_with_the_remedy(place, tmp_path, change, words):
    (tmp_path / "r.toml").write_text(BASE.format(train=str(place / "train.csv"), encoder=str(place / "encoder")))
    store = ["--out", str(tmp_path / "run"), "--store", str(place / "refused-store")]
    if not words:
        changes = ["--set", change, "--set", "stages.student.views.mixed={kind='mixup'}"]
        words = "a frozen encoder's inputs cannot be mixed, its features are cached; use kind = 'manifold'"
    else:
        changes = ["--set", change]
    done = CliRunner().invoke(main, ["run", str(tmp_path / "r.toml"), *store, *changes])
    assert done.exit_code == 2, done.output
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last
    assert "training" not in done.stderr  # before anything is trained


def test_a_map_of_other_data_is_refused(place, tmp_path):
    three_classes(tmp_path / "foreign.csv", 260, 7)
    data = read_dataset(tmp_path / "foreign.csv")
    recorder = Recorder(data.ids, data.labels, data.classes)
    recorder.record(np.arange(len(data)), np.random.default_rng(0).normal(size=(len(data), 3)))
    recorder.dynamics().save(tmp_path / "map")
    (tmp_path / "r.toml").write_text(BASE.format(train=str(place / "train.csv"), encoder=str(place / "encoder")))
    arguments = ["--set", f"stages.student.map={str(tmp_path / 'map')!r}", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(main, ["run", str(tmp_path / "r.toml"), *arguments, "--store", str(place / "refused-store")])
    assert done.exit_code == 2
    assert "is of other data: it lacks 182 of 182 training examples, the first with id 'e0-" in done.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_two_classes_are_said_once(tmp_path):
    write_csv(tmp_path / "train.csv", 200, 0, ids=True)
    save_model(tmp_path / "encoder", head=False)
    text = BASE.format(train=str(tmp_path / "train.csv"), encoder=str(tmp_path / "encoder"))
    two = 'similar = { kind = "manifold", pairs = "similar" }, dissimilar = { kind = "manifold", pairs = "dissimilar" }'
    text = text.replace('mixed = { kind = "manifold", pairs = "regions" }', two)
    text = text.replace('view = "mixed" }', 'view = "similar" }, { loss = "cross_entropy", view = "dissimilar" }')
    (tmp_path / "r.toml").write_text(text)
    done = CliRunner().invoke(main, ["run", str(tmp_path / "r.toml"), "--out", str(tmp_path / "run"), "--store",
                                     str(tmp_path / "store")])  # fmt: skip
    assert done.exit_code == 0, done.output
    notes = [line for line in done.stderr.splitlines() if "two classes" in line]
    assert len(notes) == 1
    assert "saliency = 'features' tells them apart" in notes[0]
