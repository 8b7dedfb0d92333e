"""What a recipe's data, models, losses and files rule out is refused before anything is trained."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny import reviews, save_model

from distilcal.config.loading import parse_recipe
from distilcal.data import Dataset, Images, Vectors
from distilcal.data.splits import Splits
from distilcal.errors import InputError
from distilcal.pipeline.preflight import MIN_DEV_EXAMPLES, STAGE_CHECKS, check_predictions, check_recipe
from distilcal.predictions import Predictions

PLAIN = {"loss": "cross_entropy"}
MIXED = {"loss": "cross_entropy", "view": "mixed"}


def splits_of(build, dev=30):
    parts = [build(60, 0), build(dev, 1), build(30, 2)]
    named = [part.with_role(role, name=role) for part, role in zip(parts, ("train", "dev", "test"), strict=True)]
    return Splits(*named)


def texts(rows, seed):
    return reviews(rows, seed)


def vectors(rows, seed):
    rng = np.random.default_rng(seed)
    return Dataset(Vectors(rng.normal(size=(rows, 4)).astype(np.float32)), rng.integers(0, 2, rows), ("neg", "pos"))


def images(rows, seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 255, (rows, 8, 8, 3)).astype(np.uint8)
    return Dataset(Images(pixels), rng.integers(0, 2, rows), ("neg", "pos"))


def recipe(model, **stage):
    return parse_recipe({"data": {"train": "t.csv"}, "stages": {"s": {"model": model, "terms": [PLAIN], **stage}}})


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return str(save_model(tmp_path_factory.mktemp("m") / "bert", head=False))


def test_a_recipe_that_fits_its_data_passes(encoder):
    check_recipe(recipe({"name": encoder, "layers": [0, 3]}), splits_of(texts))
    check_recipe(recipe({"name": "linear"}, terms=[PLAIN, MIXED], views={"mixed": {}}), splits_of(vectors))
    cut = {"kind": "cutout", "length": 2}
    check_recipe(
        recipe({"name": "resnet8"}, terms=[PLAIN, {"loss": "focal", "view": "cut"}], views={"cut": cut}), splits_of(images)
    )


@pytest.mark.parametrize(
    ("data", "model", "stage", "words"),
    [
        (vectors, "linear", {"terms": [{"loss": "kdd"}]}, "stages.s.terms[0]: there is no loss 'kdd'; did you mean kd"),
        (vectors, "linear", {"terms": [{"loss": "focal", "gama": 1}]}, "focal has no setting 'gama'"),
        (vectors, "linear", {"terms": [{"loss": "focal", "gamma": "x"}]}, "focal cannot be computed with {'gamma': 'x'}"),
        (vectors, "linear", {"terms": [{"loss": "focal", "view": "mixd"}]}, "stages.s.terms[0]: there is no view 'mixd'"),
        (vectors, "linear", {"terms": [PLAIN, {"loss": "focal", "view": "mixup"}]}, "terms[1]: focal needs one label"),
        (
            vectors,
            "linear",
            {"terms": [PLAIN, {"loss": "brier", "view": "cutmix"}]},
            "cutmix cuts images, the data hold vectors",
        ),
        (vectors, "resnet8", {}, "stages.s.model: there is no network 'resnet8' for vectors; give 'linear' or 'mlp'"),
        (images, "resnet9", {}, "resnet9"),
        (texts, "./nowhere", {}, "./nowhere: there is no such folder"),
        (vectors, "linear", {"map": "./nowhere"}, "nowhere"),
        (images, "resnet8", {"train": {"freeze_embeddings": True}}, "stages.s.train: freeze_embeddings is for text encoders"),
    ],
)
def test_what_the_data_rule_out_is_refused(data, model, stage, words):
    with pytest.raises(InputError) as caught:
        check_recipe(recipe({"name": model}, **stage), splits_of(data))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("model", "view", "words"),
    [
        ({"layers": [0, 7]}, {}, "stages.s.model: layer 7 of a model with 4 layers; give numbers from 0 to 3"),
        ({}, {"kind": "manifold", "layers": [5]}, "stages.s.views.mixed.layers: the network has 4 layers"),
        ({"layers": [0, 1]}, {"kind": "manifold", "layers": [3]}, "the network has 2 layers"),
        ({"frozen": True}, {"kind": "mixup"}, "a frozen encoder's inputs cannot be mixed"),
        ({"frozen": True, "hidden": [8]}, {"kind": "manifold", "layers": [2]}, "the head has 1 hidden layers"),
    ],
)
def test_what_the_encoder_rules_out_is_refused(encoder, model, view, words):
    with pytest.raises(InputError) as caught:
        check_recipe(recipe({"name": encoder, **model}, terms=[PLAIN, MIXED], views={"mixed": view}), splits_of(texts))
    assert words in str(caught.value)


def test_a_frozen_encoder_has_no_embeddings_to_freeze(encoder):
    trained = {"train": {"freeze_embeddings": True}}
    check_recipe(recipe({"name": encoder}, **trained), splits_of(texts))
    with pytest.raises(InputError, match=r"stages\.s\.train: freeze_embeddings is for text encoders that are trained"):
        check_recipe(recipe({"name": encoder, "frozen": True}, **trained), splits_of(texts))


def test_a_network_that_starts_from_another_has_its_layers(encoder):
    stages = {
        "a": {"model": {"name": encoder}, "terms": [PLAIN]},
        "b": {"model": {"start_from": "a"}, "terms": [MIXED], "views": {"mixed": {"kind": "manifold", "layers": [9]}}},
    }
    with pytest.raises(InputError, match=r"stages.b.views.mixed.layers: the network has 4 layers"):
        check_recipe(parse_recipe({"data": {"train": "t.csv"}, "stages": stages}), splits_of(texts))


def test_dev_regions_and_files_must_be_large_enough_and_there(tmp_path):
    with pytest.raises(InputError, match=f"dev has 19 examples; give at least {MIN_DEV_EXAMPLES}"):
        check_recipe(recipe({"name": "linear"}), splits_of(vectors, dev=19))
    stages = {
        "map": {"model": {"name": "linear"}, "terms": [PLAIN], "record": True},
        "s": {
            "model": {"name": "linear"},
            "terms": [PLAIN, MIXED],
            "map": "map",
            "views": {"mixed": {"pairs": "regions", "fraction": 0.02}},
        },
    }
    with pytest.raises(InputError, match="a region of fraction 0.02 has 1 of 60 examples, too few to pair"):
        check_recipe(parse_recipe({"data": {"train": "t.csv"}, "stages": stages}), splits_of(vectors))
    files = {"s": {"predictions": [str(tmp_path / "none.npz")]}}
    with pytest.raises(InputError, match=r"none.npz: there is no such file; check stages.s.predictions"):
        check_recipe(parse_recipe({"data": {"train": "t.csv"}, "stages": files}), splits_of(vectors))


def test_every_check_of_a_stage_says_what_it_checks():
    for check in STAGE_CHECKS:
        assert check.__name__.startswith("check_")
        assert check.__doc__


# ---- predictions in place of a model -----------------------------------------------------------------------------------


def predictions_of(data, **changes):
    logits = np.zeros((len(data), 2), dtype=np.float32)
    return Predictions(logits, **{"labels": data.labels, "ids": data.ids, "classes": data.classes, **changes})


def test_predictions_are_matched_by_id_and_class():
    splits = splits_of(vectors)
    check_predictions("api", predictions_of(splits.train), splits)
    check_predictions("api", predictions_of(splits.train, labels=1 - splits.train.labels, classes=("pos", "neg")), splits)
    with pytest.raises(InputError, match="the predictions of 'api' have no ids; add an id column"):
        check_predictions("api", predictions_of(splits.train, ids=None), splits)
    with pytest.raises(InputError, match="has the label '(neg|pos)' in the predictions of 'api' and '(neg|pos)' in train"):
        check_predictions("api", predictions_of(splits.train, labels=1 - splits.train.labels), splits)
    same_rows = Splits(splits.train, splits.train.with_role("dev", name="dev"), splits.test)
    check_predictions("api", predictions_of(splits.train), same_rows)  # an example that is in two splits is the same in both
    other_rows = replace(vectors(60, 5), ids=splits.train.ids, name="dev")
    same_ids = Splits(splits.train, other_rows, splits.test)
    with pytest.raises(InputError, match="is in train and in dev: the predictions of 'api' cannot tell them apart"):
        check_predictions("api", predictions_of(splits.train), same_ids)


def test_predictions_without_labels_agree_with_any():
    splits = splits_of(vectors)
    check_predictions("api", predictions_of(splits.train, labels=None), splits)


@pytest.mark.parametrize(
    ("weights", "words"),
    [("nowhere.safetensors", "no such file"), ("folder", "this is a folder"), ("/dev/zero", "a pipe or a device")],
)
def test_weights_of_networks_for_images_are_files(tmp_path, monkeypatch, weights, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match=words):
        check_recipe(recipe({"name": "resnet8", "weights": weights}), splits_of(images))
    with pytest.raises(InputError, match="weights is for networks for images"):
        check_recipe(recipe({"name": "linear", "weights": weights}), splits_of(vectors))


@pytest.mark.parametrize(
    ("student", "remedy"),
    [
        ({"teacher_input": "live"}, "use teacher_input = 'cached'"),
        (
            {"views": {"mixed": {"kind": "mixup", "teacher": "mixed"}}, "terms": [PLAIN, {"loss": "kd", "view": "mixed"}]},
            "clean",
        ),
    ],
)
def test_a_teacher_that_reads_cached_features_cannot_be_run_on_tokens(encoder, student, remedy):
    def teach(*, frozen):
        model = {"name": encoder, "head": "new"}
        terms = [PLAIN, {"loss": "kd"}]
        stages = {
            "teacher": {"model": {**model, "frozen": frozen}, "terms": [PLAIN]},
            "student": {"model": model, "terms": terms, "teacher": "teacher", **student},
        }
        check_recipe(parse_recipe({"data": {"train": "t.csv"}, "stages": stages}), splits_of(texts))

    teach(frozen=False)
    with pytest.raises(InputError, match=f"'teacher' cannot be run on the student's inputs.*{remedy}"):
        teach(frozen=True)
