"""Teachers: rows found by id, classes by name, and live teachers that see what the student sees."""

import numpy as np
import pytest
import torch
from small import DEV, TRAIN, pictures, student, teacher, teacher_features, teacher_predictions, term, weights
from tiny import reviews, save_model

from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.errors import InputError
from distilcal.models import build_classifier
from distilcal.predictions import Predictions
from distilcal.training import Features, fit, predict
from distilcal.views import VIEWS, build_term


@pytest.mark.parametrize("name", ["kd", "rkd", "crd"])
def test_a_term_without_its_teacher_is_refused(name):
    with pytest.raises(InputError, match="needs teacher_"):
        fit(student(), TRAIN, DEV, [term(name)])


def shuffled_teacher():
    """The same teacher with 7 rows more, in another order and with other classes first."""
    order = np.random.default_rng(0).permutation(97)
    ids = np.r_[TRAIN.ids, [f"extra {i}" for i in range(7)]][order]
    columns = [2, 0, 1]
    logits = np.r_[teacher_predictions().logits, np.ones((7, 3), np.float32)][order][:, columns]
    values = np.r_[teacher_features().values, np.ones((7, 4), np.float32)][order]
    classes = [TRAIN.classes[c] for c in columns]
    return Predictions(logits, np.zeros(97, np.int64), ids=ids, classes=classes), Features(ids, values)


@pytest.mark.parametrize("name", ["kd", "rkd"])
def test_rows_of_a_teacher_are_found_by_id_and_classes_by_name(name):
    predictions, features = shuffled_teacher()
    how = TrainSettings(epochs=2, batch=16, lr=0.05)
    expected, made = student(), student()
    fit(expected, TRAIN, DEV, [term(name)], how, **teacher())
    fit(made, TRAIN, DEV, [term(name)], how, teacher=predictions, teacher_features=features)
    assert torch.equal(weights(made), weights(expected))


@pytest.mark.parametrize("kind", ["predictions", "features"])
def test_a_missing_row_of_a_teacher_is_named(kind):
    missing = ~np.isin(np.arange(90), [17, 40])
    given = teacher()
    if kind == "predictions":
        given["teacher"] = given["teacher"].select(missing)
    else:
        given["teacher_features"] = Features(TRAIN.ids[missing], teacher_features().values[missing])
    only = term("kd" if kind == "predictions" else "rkd")
    words = (
        f"2 of the 90 rows of 'data' take part in no term: the first, with id '{TRAIN.ids[17]}', has no output of the teacher"
    )
    with pytest.raises(InputError, match=words):
        fit(student(), TRAIN, DEV, [only], **given)
    fit(student(), TRAIN, DEV, [only, term("cross_entropy")], TrainSettings(epochs=1), **given)


@pytest.mark.parametrize("kind", ["predictions", "features"])
def test_a_teacher_of_other_rows_is_refused(kind):
    other = np.array([f"other {i}" for i in range(90)])
    given = {"teacher": Predictions(teacher_predictions().logits, ids=other, classes=TRAIN.classes)}
    if kind == "features":
        given = {"teacher_features": Features(other, teacher_features().values)}
    with pytest.raises(InputError, match=f"the teacher's {kind} lack all 90 rows of 'data', the first with id"):
        fit(student(), TRAIN, DEV, [term("cross_entropy")], **given)


def test_a_teacher_needs_ids_and_the_classes_of_the_data():
    logits = teacher_predictions().logits
    with pytest.raises(InputError, match="have no ids"):
        fit(student(), TRAIN, DEV, [term("kd")], teacher=Predictions(logits, TRAIN.labels, classes=TRAIN.classes))
    with pytest.raises(InputError, match="has classes"):
        fit(student(), TRAIN, DEV, [term("kd")], teacher=Predictions(logits, TRAIN.labels, ids=TRAIN.ids))


def test_features_have_one_unique_id_per_row():
    with pytest.raises(InputError, match="2 ids for 3 rows"):
        Features(np.array(["a", "b"]), np.zeros((3, 4)))
    with pytest.raises(InputError, match="the same id"):
        Features(np.array(["a", "a"]), np.zeros((2, 4)))


def test_logits_of_a_teacher_reach_the_loss_bit_for_bit():
    predictions, received = teacher_predictions(), []

    def spy(logits, teacher_logits, ids):
        received.append((teacher_logits.clone(), ids.clone()))
        return logits.sum() * 0

    fit(student(), TRAIN, DEV, [build_term(spy)], TrainSettings(epochs=1, batch=16), teacher=predictions)
    for logits, ids in received:
        assert logits.dtype == torch.float32
        assert torch.equal(logits, torch.from_numpy(predictions.logits.copy())[ids])


def test_a_live_teacher_must_read_what_the_student_reads(tmp_path):
    save_model(tmp_path / "m", labels=("neg", "pos"))
    short = build_classifier(ModelSettings(name=str(tmp_path / "m"), max_length=8), reviews())
    long = build_classifier(ModelSettings(name=str(tmp_path / "m"), max_length=16), reviews())
    with pytest.raises(InputError, match="must read the same inputs"):
        fit(short, reviews(), reviews(30, 1), [build_term("kd")], TrainSettings(epochs=1), live_teacher=long)


def test_frozen_embeddings_stay_and_everything_else_learns(tmp_path):
    save_model(tmp_path / "m", head=False)
    settings = TrainSettings(epochs=1, lr=0.01, freeze_embeddings=True, choose="last")
    classifier = build_classifier(ModelSettings(name=str(tmp_path / "m")), reviews())
    before = {name: value.clone() for name, value in classifier.network.state_dict().items()}
    fit(classifier, reviews(), reviews(30, 1), [build_term("cross_entropy")], settings)
    unchanged = [name for name, value in classifier.network.state_dict().items() if torch.equal(value, before[name])]
    assert [name for name in unchanged if "position_ids" not in name] == ["model.bert.embeddings.word_embeddings.weight"]
    assert all(parameter.requires_grad for parameter in classifier.network.parameters())  # for the next training
    with pytest.raises(InputError, match="freeze_embeddings is for text encoders"):
        fit(student(), TRAIN, DEV, [build_term("cross_entropy")], settings)


def test_text_is_learned_and_distilled(tmp_path):
    save_model(tmp_path / "m", head=False)
    train, dev = reviews(300, 0), reviews(100, 1)
    big = build_classifier(ModelSettings(name=str(tmp_path / "m"), dropout=0.0), train)
    fit(big, train, dev, [build_term("cross_entropy")], TrainSettings(epochs=6, lr=5e-3, batch=32), store=tmp_path / "store")
    assert predict(big, dev).correct.mean() > 0.7
    small = build_classifier(ModelSettings(name=str(tmp_path / "m"), layers=(0,), dropout=0.0), train)
    fit(
        small,
        train,
        dev,
        [build_term("kd")],
        TrainSettings(epochs=6, lr=5e-3),
        teacher=predict(big, train),
        store=tmp_path / "store",
    )
    assert (predict(small, dev).predicted == predict(big, dev).predicted).mean() > 0.8


def test_a_live_teacher_sees_what_the_student_sees():
    train = pictures()
    big = build_classifier(ModelSettings(name="resnet8", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)), train, seed=1)
    small = build_classifier(ModelSettings(name="resnet8", augment=True), train, seed=2)
    seen = []

    def spying(network, batch):
        raw = batch.inputs["pixels"] * torch.tensor(small.inputs.std).view(1, 3, 1, 1) + torch.tensor(small.inputs.mean).view(
            1, 3, 1, 1
        )
        own = (raw - torch.tensor(big.inputs.mean).view(1, 3, 1, 1)) / torch.tensor(big.inputs.std).view(1, 3, 1, 1)
        with torch.no_grad():
            seen.append((batch.teacher_logits, big.network({"pixels": own}).logits))
        return VIEWS["plain"](network, batch)

    fit(
        small,
        train,
        pictures(8, 1),
        [build_term("kd")],
        TrainSettings(epochs=2, batch=8),
        live_teacher=big,
        views={"plain": spying},
    )
    assert len(seen) == 6
    for given, expected in seen:
        torch.testing.assert_close(given, expected, atol=1e-4, rtol=1e-4)
