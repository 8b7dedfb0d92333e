"""What DistillationTrainer and loss_func refuse, before anything is trained."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from distillation_cases import DATA, LOGITS, student, train
from trainer_cases import Drawn
from transformers import Trainer

from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, Vectors
from distilcal.errors import InputError, MissingDependencyError
from distilcal.integrations.transformers import DistillationTrainer, loss_func
from distilcal.integrations.transformers.objective import parse_terms
from distilcal.models import build_classifier
from distilcal.predictions import Predictions
from distilcal.training import Features
from distilcal.views import build_term

UNNAMED = {"id2label": {0: "LABEL_0", 1: "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}}
IDS = [f"r{i}" for i in range(32)]


def predictions(**changes):
    return Predictions(**{"logits": LOGITS, "labels": [0] * 32, "ids": IDS, "classes": ("neg", "pos"), **changes})


def vectors():
    data = Dataset(Vectors(np.eye(4, dtype=np.float32)), [0, 1, 1, 0], ("neg", "pos"))
    return build_classifier(ModelSettings(name="linear"), data)


def unnamed_data():
    return [{k: v for k, v in e.items() if k != "id"} for e in DATA]


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"teacher": None}, r"kd needs teacher_logits; pass teacher="),
        ({"terms": {"rkd": 1.0}}, r"rkd needs teacher_features; pass teacher_features=, or a model"),
        ({"terms": {"crd": 1.0}}, r"crd needs teacher_features"),
        ({"terms": {"kdd": 1.0}}, r"there is no loss 'kdd'; did you mean kd"),
        ({"terms": {"kd": {"temprature": 2}}}, r"kd has no setting 'temprature'"),
        ({"terms": {"kd": "1"}}, r"the weight of kd is '1'"),
        ({"terms": {}}, r"nothing to minimise"),
        ({"terms": ["kd"]}, r"'kd' is not a term"),
        ({"terms": [build_term("kd", view="mixup")]}, r"kd looks at the view 'mixup'"),
        ({"teacher": predictions(ids=None)}, r"have no ids"),
        (
            {"teacher": predictions(ids=[f"x{i}" for i in range(32)])},
            r"lack all 32 rows of train_dataset, the first with id 'r0'",
        ),
        (
            {"teacher": predictions().select(range(1, 32)), "terms": {"kd": 1}},
            r"train_dataset, row 0 .*: 1 of the 32 rows take part in no term",
        ),
        ({"teacher": predictions(classes=("a", "b"))}, r"has classes 'a', 'b', the student 'neg', 'pos'.*teacher_classes="),
        ({"teacher": student(seed=1), "teacher_features": Features(IDS, LOGITS)}, r"teacher_features are given beside a model"),
        ({"teacher": student(seed=1, vocab_size=40)}, r"vocabulary has 40 tokens, the student's 31.*give its Predictions"),
        ({"teacher": vectors()}, r"this teacher is not a transformers model"),
        ({"teacher": "bert"}, r"a str cannot be a teacher"),
        ({"classes": ["neg", "pos", "other"]}, r"got 3 classes, but the model has 2"),
        ({"ids": IDS[:3]}, r"ids of shape \(3,\) for 32 training examples"),
        ({"ids": ["a"] * 32}, r"two examples of train_dataset have the id 'a'"),
        ({"compute_loss_func": loss_func("mdca")}, r"compute_loss_func and terms are given"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(tmp_path, named, message):
    with pytest.raises(InputError, match=message):
        train(tmp_path, named=named)


def test_data_without_ids_are_refused_for_predictions_only(tmp_path):
    with pytest.raises(InputError, match="has no ids to match.*give it a column 'id'"):
        train(tmp_path, data=unnamed_data())
    with pytest.raises(InputError, match="has no ids to match"):
        train(tmp_path, data=Drawn(DATA))
    given = train(tmp_path, data=Drawn(DATA), named={"ids": IDS})
    assert given.state.global_step == 4
    train(tmp_path, data=unnamed_data(), named={"teacher": student(seed=1)})
    train(tmp_path, data=unnamed_data(), named={"teacher": None, "terms": {"pskd": 1.0}})


def test_a_stream_is_refused_where_rows_are_looked_up(tmp_path):
    import datasets

    stream = datasets.Dataset.from_list(unnamed_data()).to_iterable_dataset()
    with pytest.raises(InputError, match="the training data is a stream"):
        train(tmp_path, data=stream, named={"teacher": None, "terms": {"pskd": 1.0}}, max_steps=2)
    with pytest.raises(InputError, match="the training data is a stream, in which a teacher's predictions cannot be looked up"):
        train(tmp_path, data=stream, max_steps=2)
    found = train(tmp_path, data=stream, named={"teacher": student(seed=1)}, max_steps=2)
    assert len(found.losses) == 2


def test_classes_without_names_need_the_users_word(tmp_path):
    with pytest.raises(InputError, match="only call their classes 'LABEL_0', 'LABEL_1', which may stand for different ones"):
        train(tmp_path, model=student(**UNNAMED), named={"teacher": student(seed=1, **UNNAMED)})
    names = {"classes": ["neg", "pos"], "teacher_classes": ["neg", "pos"]}
    train(tmp_path, model=student(**UNNAMED), named={"teacher": student(seed=1, **UNNAMED), **names})
    train(tmp_path, model=student(**UNNAMED), named={"teacher": predictions(classes=()), **names})


def test_the_data_and_the_model_name_the_same_classes(tmp_path):
    import datasets

    data = datasets.Dataset.from_list(DATA).cast_column("label", datasets.ClassLabel(names=["pos", "neg"]))
    with pytest.raises(InputError, match=r"train_dataset are \['pos', 'neg'\], those of the model's id2label \['neg', 'pos'\]"):
        train(tmp_path, data=data)


def test_a_student_is_not_its_own_teacher(tmp_path):
    model = student()
    with pytest.raises(InputError, match="the teacher is the student itself"):
        train(tmp_path, model=model, named={"teacher": model})


def test_label_smoothing_belongs_to_the_terms(tmp_path):
    with pytest.raises(InputError, match='give {"cross_entropy": {"smoothing": 0.1}}'):
        train(tmp_path, label_smoothing_factor=0.1)


def test_several_labels_per_example_are_refused(tmp_path):
    data = [{**e, "label": [0.0, 1.0]} for e in DATA]
    with pytest.raises(InputError, match="only classifiers can be trained"):
        train(tmp_path, data=data)


@pytest.mark.parametrize("label", [2, 7, -5, -2])
@pytest.mark.parametrize("terms", [{"kd": 1.0}, {"cross_entropy": 1.0}, {"crl": 1.0}], ids=lambda terms: next(iter(terms)))
def test_a_label_that_is_no_class_is_refused(tmp_path, label, terms):
    message = f"label {label} is no class.*give .*-1 or -100 for an unlabelled example"
    data = [*DATA[:-1], {**DATA[-1], "label": label}]
    with pytest.raises(InputError, match=message):
        train(tmp_path, data=data, named={"terms": terms})
    with pytest.raises(InputError, match=message):
        loss_func("cross_entropy")({"logits": torch.zeros(2, 2)}, torch.tensor([0, label]))
    trainer = train(tmp_path, max_steps=1)
    with pytest.raises(InputError, match=message):
        trainer.evaluate(data)


@pytest.mark.parametrize(
    ("terms", "devices", "message"),
    [
        ({"crl": 1.0}, {"world_size": 2, "n_gpu": 1}, "crl has a memory, which 2 processes do not share"),
        ({"rkd": 1.0}, {"world_size": 1, "n_gpu": 2}, "rkd compares features, which 2 GPUs in one process"),
    ],
)
def test_losses_that_devices_would_divide_are_refused(tmp_path, terms, devices, message):
    trainer = train(tmp_path, named={"terms": terms, "teacher_features": Features(IDS, LOGITS)}, max_steps=1)
    trainer.args = SimpleNamespace(**devices)
    with pytest.raises(InputError, match=message):
        trainer._check_devices()


def test_a_trainer_without_training_data_evaluates(tmp_path):
    from trainer_cases import settings

    trainer = DistillationTrainer(student(), settings(tmp_path), eval_dataset=[{**e, "label": -1} for e in unnamed_data()[:4]])
    trainer.data_collator = lambda batch: {
        "input_ids": torch.tensor([e["input_ids"][:3] for e in batch]),
        "labels": torch.tensor([e["label"] for e in batch]),
    }
    assert trainer.evaluate()["eval_loss"] == 0.0  # no row has a label
    with pytest.raises(ValueError, match="requires a train_dataset"):
        trainer.train()


@pytest.mark.parametrize(
    ("loss", "settings", "message"),
    [
        ("kd", {}, "kd needs more than logits and labels: logits, teacher_logits; train with .*DistillationTrainer"),
        ("adafocal", {}, "adafocal needs more than logits and labels: logits, labels and a memory"),
        ("rkd", {}, "rkd needs more than"),
        ("mdac", {}, "there is no loss 'mdac'; did you mean mdca"),
        ("focal", {"gama": 1}, "focal has no setting 'gama'"),
        ({"mdca": 1.0}, {"weight": 2.0}, "put them into the dict"),
    ],
)
def test_loss_func_refuses_what_needs_more(loss, settings, message):
    with pytest.raises(InputError, match=message):
        loss_func(loss, **settings)


def test_loss_func_shares_a_step_among_devices():
    logits, labels = torch.randn(4, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, -100, 1])
    compute_loss = loss_func("cross_entropy", weight=2.0)
    whole = compute_loss((logits,), labels)
    torch.testing.assert_close(whole, 2 * torch.nn.functional.cross_entropy(logits, labels))
    torch.testing.assert_close(compute_loss((logits,), labels, num_items_in_batch=torch.tensor(12)), whole / 4)
    torch.testing.assert_close(compute_loss((logits,), labels, num_items_in_batch=torch.full((2, 1), 3)), whole / 2)


def test_terms_of_build_term_are_kept_and_logged_apart(tmp_path):
    terms = [build_term("kd", 0.5), build_term("kd", 0.5, settings={"temperature": 2.0})]
    assert parse_terms(terms) == terms
    trainer = train(tmp_path, named={"terms": terms}, logging_steps=2)
    assert {"loss_kd_1", "loss_kd_2"} <= trainer.state.log_history[0].keys()


def test_a_transformers_that_would_divide_the_loss_again_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(Trainer, "loss_is_scaled_for_ga")
    with pytest.raises(MissingDependencyError, match="pip install --upgrade transformers"):
        train(tmp_path)
