"""Students that torch runs defer to the teacher of their run, and to models of transformers as they are in memory."""

import json

import pytest
from served import undecided_student
from tiny import reviews, save_model, sentences

import distilcal as dc
from distilcal.errors import InputError

TEXTS = sentences(30, 5)[0]


def expected(student, teacher, confidence):
    """The labels, computed one by one."""
    labels = []
    for text in TEXTS:
        sure = student.predict_proba([text]).max() >= confidence
        labels.append((student if sure else teacher).predict([text])[0])
    return labels


def test_a_student_defers_to_the_teacher_of_its_run(run):
    student, teacher = dc.load(run), dc.load(run, "teacher")
    middle = sorted(student.predict_proba(TEXTS).max(axis=1))[15] - 1e-6
    for given in (teacher, run / "teacher", str(run / "teacher")):
        answers = student.predict(TEXTS, confidence=middle, defer_to=given)
        assert [answer.label for answer in answers] == expected(student, teacher, middle)
        assert 0 < sum(answer.deferred for answer in answers) < 30


def test_the_promise_of_the_pair_is_that_of_the_run_wherever_the_student_goes(run, tmp_path):
    stored = json.loads((run / "evaluation.json").read_text())["cascade"]["promises"]["loss"]
    student = dc.load(run)
    own = student.loss_threshold(stored["target"])
    assert (own.confidence, own.message) == (stored["confidence"], stored["message"])
    limit = student.loss_threshold(0.2)
    assert limit.reached
    student.save_pretrained(tmp_path / "saved")
    student.export_onnx(tmp_path / "student.onnx")
    for exported in ("saved", "student.onnx"):
        loaded = dc.load(tmp_path / exported)
        assert loaded.loss_threshold(0.2).confidence == pytest.approx(limit.confidence, abs=1e-6)
        assert loaded.loss_threshold(0.2).value == pytest.approx(limit.value)
    student.export_onnx(tmp_path / "small.onnx", int8=True, max_drop=100)
    small = dc.load(tmp_path / "small.onnx")
    assert (small.teacher_correct == student.teacher_correct).all()
    with pytest.raises(InputError, match="no dev predictions of its teacher"):
        dc.load(run / "teacher").loss_threshold()


def test_dev_rows_of_somebody_else_tell_nothing_of_the_teacher(run, tmp_path):
    dc.load(run).export_onnx(
        tmp_path / "small.onnx", int8=True, max_drop=100, dev=reviews(99, seed=9), test=reviews(50, seed=8)
    )
    assert dc.load(tmp_path / "small.onnx").teacher_correct is None


def test_models_of_transformers_answer_as_they_are(tmp_path):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

    save_model(tmp_path / "model", labels=("long", "short"), seed=3)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model").train()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    answers = undecided_student().predict(TEXTS, confidence=1, defer_to=model)
    assert [answer.answered_by for answer in answers] == ["teacher"] * 30
    assert model.training  # it is left as it was
    loaded = dc.load(tmp_path / "model")
    assert [answer.label for answer in answers] == loaded.predict(TEXTS)
    probs = loaded.predict_proba(TEXTS).max(axis=1)
    assert [answer.confidence for answer in answers] == pytest.approx(probs, abs=1e-5)
    classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
    assert undecided_student().predict(TEXTS, confidence=1, defer_to=classify) == answers


def test_models_that_do_not_classify_are_refused(tmp_path):
    from transformers import AutoModel

    save_model(tmp_path / "encoder", head=False)
    encoder = AutoModel.from_pretrained(tmp_path / "encoder")
    with pytest.raises(InputError, match="a BertModel does not classify texts"):
        undecided_student().predict(["a"], confidence=1, defer_to=encoder)


def test_unnamed_classes_are_refused(tmp_path):
    save_model(tmp_path / "model")
    with pytest.raises(InputError, match="does not know the classes 'LABEL_0', 'LABEL_1'"):
        undecided_student().predict(["a"], confidence=1, defer_to=tmp_path / "model")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["architectures"] == ["BertForSequenceClassification"]


def test_a_dataset_with_labels_is_deferred(run):
    assert len(dc.load(run).predict(reviews(10), confidence=1, defer_to=run / "teacher")) == 10
