"""A student of single texts refuses pairs of texts wherever it is loaded from; one of pairs warns of single texts."""

import csv
import json
import re
import shutil

import numpy as np
import pytest
from served import post, server_in_thread
from shell import command
from tiny import reviews, save_model, sentences

import distilcal as dc
from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, texts
from distilcal.errors import InputError
from distilcal.export import as_student, load_student
from distilcal.models import build_classifier

SINGLE = reviews(6)
PAIRS = [("a great film", "a dull film"), ("the plot", "a superb scene")]
REFUSED = "was trained on single texts, got pairs of texts; give single texts"


def pair_data(count=6):
    return Dataset(texts(sentences(count, 0)[0], sentences(count, 1)[0]), sentences(count, 0)[1], ("neg", "pos"))


def student_of(data, folder, **settings):
    """A student that was never trained."""
    save_model(folder / "encoder", head=False)
    return as_student(build_classifier(ModelSettings(name=str(folder / "encoder"), **settings), data))


@pytest.fixture(scope="module")
def of_singles(tmp_path_factory):
    """A student of single texts in a folder and as an .onnx."""
    folder = tmp_path_factory.mktemp("singles")
    student = student_of(SINGLE, folder)
    student.save_pretrained(folder / "saved")
    student.export_onnx(folder / "student.onnx", test=SINGLE)
    return folder


@pytest.mark.parametrize("name", ["saved", "student.onnx"])
def test_a_student_of_single_texts_refuses_pairs_wherever_it_is_loaded_from(of_singles, name):
    student = dc.load(of_singles / name)
    assert student.predict(SINGLE) == student.predict(SINGLE.inputs.text.tolist())
    for call in (student.predict, student.predict_proba, lambda rows: student.predict(rows, confidence=0.5)):
        with pytest.raises(InputError, match=REFUSED):
            call(PAIRS)
    with pytest.raises(InputError, match=REFUSED):
        student.predictions(pair_data())


@pytest.mark.parametrize("name", ["saved", "student.onnx"])
def test_predict_refuses_a_file_of_pairs_in_one_line(of_singles, tmp_path, name):
    with open(tmp_path / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["premise", "hypothesis"], *PAIRS])
    message = command("predict", of_singles / name, tmp_path / "pairs.csv", "-o", tmp_path / "out.csv", code=2).stderr
    assert re.search(REFUSED, message)
    assert not (tmp_path / "out.csv").exists()


def test_the_service_refuses_pairs(of_singles):
    with server_in_thread(dc.load(of_singles / "student.onnx")) as url:
        status, _, content = post(f"{url}/predict", {"texts": PAIRS})
        assert post(f"{url}/predict", {"texts": ["a film"]})[0] == 200
    assert status == 422
    assert re.search(REFUSED, content["error"])


@pytest.mark.parametrize("frozen", [True, False])
def test_a_student_of_pairs_warns_of_single_texts_as_another_domain_may_have_them(tmp_path, frozen):
    student_of(pair_data(), tmp_path, frozen=frozen).save_pretrained(tmp_path / "saved")
    student = load_student(tmp_path / "saved")
    assert student.predict_proba(PAIRS).shape == (2, 2)
    with pytest.warns(UserWarning, match="was trained on pairs of texts, got single texts"):
        assert student.predict_proba(["a film"]).shape == (1, 2)


@pytest.mark.slow
def test_an_exported_student_of_pairs_warns_too(tmp_path):
    student_of(pair_data(), tmp_path).export_onnx(tmp_path / "student.onnx")
    student = dc.load(tmp_path / "student.onnx")
    assert student.predict_proba(PAIRS).shape == (2, 2)
    with pytest.warns(UserWarning, match="was trained on pairs of texts, got single texts"):
        assert student.predict_proba(["a film"]).shape == (1, 2)


def test_what_encodes_two_texts_apart_refuses_single_ones(tmp_path):
    student = student_of(pair_data(), tmp_path, frozen=True, pairs="apart")
    assert student.predict_proba(PAIRS).shape == (2, 2)
    with pytest.raises(InputError, match="reads pairs of texts, got single ones"), pytest.warns(UserWarning, match="pairs"):
        student.predict_proba(["a film"])


def test_a_teacher_of_single_texts_cannot_answer_for_a_student_of_pairs(tmp_path):
    with pytest.raises(InputError, match="it was trained on single texts, the student on pairs"):
        student_of(pair_data(), tmp_path).teacher(student_of(SINGLE, tmp_path))


def test_a_student_saved_by_an_earlier_version_reads_both(of_singles, tmp_path):
    folder = shutil.copytree(of_singles / "saved", tmp_path / "saved")
    card = json.loads((folder / "distilcal.json").read_text())
    del card["text_pairs"]
    (folder / "manifest.json").unlink(missing_ok=True)
    (folder / "distilcal.json").write_text(json.dumps(card))
    student = load_student(folder)
    assert student.predict_proba(PAIRS).shape == student.predict_proba(["a film", "a plot"]).shape
    assert np.isfinite(student.predict_proba(PAIRS)).all()
