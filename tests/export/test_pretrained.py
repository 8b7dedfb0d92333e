"""A saved student gives its calibrated probabilities in plain transformers, and calibration is never applied twice."""

import errno
import json
import logging
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from small import SMALL, pictures, vectors
from tiny import reviews, save_model

from distilcal.calibrate import FITS
from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, choices, texts
from distilcal.errors import InputError, MissingDependencyError
from distilcal.export import as_student, load_student
from distilcal.export.pretrained import NOT_APPLIED
from distilcal.models import build_classifier, load_classifier
from distilcal.training import predict

FOLDED, BESIDE = ("temperature", "vector", "matrix"), ("dirichlet", "isotonic", "histogram")
LONG = ["great film", "awful " * 60, "film " * 11 + "great lovely", "."]


def calibrated(classifier, data, method="temperature"):
    dev = predict(classifier, data)
    return as_student(classifier, calibrator=FITS[method](dev), dev=dev)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = save_model(tmp_path_factory.mktemp("plain"), labels=("neg", "pos"), num_hidden_layers=1, initializer_range=0.3)
    return build_classifier(ModelSettings(name=str(folder), head="keep", max_length=10), reviews(4))


@pytest.mark.parametrize("wrong", [3, None, ["student"]])
def test_what_is_no_path_is_refused(classifier, wrong):
    with pytest.raises(InputError, match="folder: expected .*path"):
        as_student(classifier).save_pretrained(wrong)
    with pytest.raises(InputError, match="path: expected .*path"):
        as_student(classifier).export_onnx(wrong)


def pipeline_probs(folder, examples, classes):
    from transformers import pipeline

    answers = pipeline("text-classification", model=str(folder))(examples, top_k=None, truncation=True)
    return np.array([[next(a["score"] for a in answer if a["label"] == name) for name in classes] for answer in answers])


def test_a_pipeline_of_transformers_gives_the_calibrated_probabilities(run, tmp_path):
    student = load_student(run)
    assert student.calibrator.value != pytest.approx(1, abs=0.05)
    student.save_pretrained(tmp_path / "student")
    probs = pipeline_probs(tmp_path / "student", LONG, student.classes)
    assert np.abs(probs - student.predict_proba(LONG)).max() < 1e-5


def test_the_config_has_what_others_need(run, tmp_path):
    student = load_student(run)
    student.save_pretrained(tmp_path / "student")
    config = json.loads((tmp_path / "student" / "config.json").read_text())
    assert config["id2label"] == {"0": "neg", "1": "pos"}
    assert config["label2id"] == {"neg": 0, "pos": 1}
    assert config["problem_type"] == "single_label_classification"
    assert config["distilcal"]["calibration"] == {"kind": "temperature", "value": student.calibrator.value, "folded": True}
    assert json.loads((tmp_path / "student" / "tokenizer_config.json").read_text())["model_max_length"] == 12


@pytest.mark.parametrize("method", FOLDED)
def test_folded_calibration_is_applied_once(classifier, tmp_path, method):
    student = calibrated(classifier, reviews(200), method)
    student.save_pretrained(tmp_path / "first")
    loaded = load_student(tmp_path / "first")
    assert loaded.calibrator is None
    assert loaded.folded["kind"] == method
    loaded.save_pretrained(tmp_path / "second")
    loaded.save_pretrained(tmp_path / "second")
    student.save_pretrained(tmp_path / "first")
    expected = student.predict_proba(LONG)
    for folder in ("first", "second"):
        again = load_student(tmp_path / folder)
        assert np.abs(again.predict_proba(LONG) - expected).max() < 1e-5
        assert again.folded == loaded.folded
        assert again.threshold(0.5).confidence == pytest.approx(student.threshold(0.5).confidence, abs=1e-6)
        assert np.abs(pipeline_probs(tmp_path / folder, LONG, student.classes) - expected).max() < 1e-5


@pytest.mark.parametrize("method", BESIDE)
def test_calibrators_beside_the_weights_are_applied_by_us_and_missed_by_others(classifier, tmp_path, method, caplog, capfd):
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import logging as transformers_logging

    student = calibrated(classifier, reviews(200), method)
    student.save_pretrained(tmp_path / "first")
    load_student(tmp_path / "first").save_pretrained(tmp_path / "second")
    transformers_logging.enable_propagation()
    try:
        with caplog.at_level(logging.WARNING):
            capfd.readouterr()
            loaded = load_student(tmp_path / "second")
            assert not caplog.records
            assert capfd.readouterr() == ("", "")
            AutoModelForSequenceClassification.from_pretrained(tmp_path / "second")
    finally:
        transformers_logging.disable_propagation()
    assert any(NOT_APPLIED in record.getMessage() for record in caplog.records)
    assert loaded.calibrator.kind == method
    assert np.abs(loaded.predict_proba(LONG) - student.predict_proba(LONG)).max() < 1e-6
    if method == "isotonic":
        calibrated(classifier, reviews(200)).save_pretrained(tmp_path / "second")
        assert not (tmp_path / "second" / "calibrator.npz").exists()
        assert load_student(tmp_path / "second").calibrator is None


def test_a_saved_student_teaches_and_is_trained_again_without_its_record(classifier, tmp_path):
    student = calibrated(classifier, reviews(200))
    student.save_pretrained(tmp_path / "student")
    data = reviews(20)
    np.testing.assert_allclose(
        predict(load_classifier(tmp_path / "student"), data).probs, student.predict_proba(data), atol=1e-6
    )
    teacher = build_classifier(ModelSettings(name=str(tmp_path / "student"), head="keep"), data)
    np.testing.assert_allclose(predict(teacher, data).probs, student.predict_proba(data), atol=1e-6)
    assert not hasattr(teacher.network.model.config, "distilcal")


def test_the_student_itself_stays_as_it_is(classifier, tmp_path):
    student = calibrated(classifier, reviews(200))
    before, fingerprint = student.predict_proba(LONG), classifier.fingerprint
    student.save_pretrained(tmp_path / "student")
    assert (student.predict_proba(LONG) == before).all()
    assert classifier.fingerprint == fingerprint
    assert classifier.inputs.tokenizer.model_max_length == 32


@pytest.mark.parametrize("kind", ["vectors", "images"])
def test_other_networks_are_saved_with_their_calibration(tmp_path, kind):
    data = vectors(60) if kind == "vectors" else pictures(30)
    settings = SMALL if kind == "vectors" else ModelSettings(name="resnet8", std=(0.3, 0.2, 0.1))
    for method in ("temperature", "isotonic"):
        student = calibrated(build_classifier(settings, data), data, method)
        student.save_pretrained(tmp_path / method)
        loaded = load_student(tmp_path / method)
        assert (loaded.calibrator is None) == (method == "temperature")
        assert np.abs(loaded.predict_proba(data) - student.predict_proba(data)).max() < 1e-6
        assert loaded.input_kind == kind


@pytest.mark.parametrize("pairs", ["together", "apart"])
def test_a_frozen_encoder_is_saved_with_its_head(tmp_path, pairs):
    save_model(tmp_path / "encoder", head=False)
    data = reviews(40)
    paired = replace(data, inputs=texts(data.inputs.text, data.inputs.text[::-1]), ids=np.array([]))
    settings = ModelSettings(name=str(tmp_path / "encoder"), layers=(0, 2), frozen=True, pairs=pairs, max_length=16)
    student = calibrated(build_classifier(settings, paired), paired)
    student.save_pretrained(tmp_path / "student")
    (tmp_path / "encoder").rename(tmp_path / "gone")
    (tmp_path / "student").rename(tmp_path / "moved")
    loaded = load_student(tmp_path / "moved")
    assert np.abs(loaded.predict_proba(paired) - student.predict_proba(paired)).max() < 1e-6


def test_multiple_choice_is_saved_for_transformers(tmp_path):
    from transformers import AutoModelForMultipleChoice

    save_model(tmp_path / "encoder", head=False)
    made = choices([f"film {w}" for w in ("a", "of", "the")] * 10, [["great fun", "dull", "stale plot"]] * 30)
    data = Dataset(made, np.arange(30) % 3, ("0", "1", "2"), ids=np.arange(30).astype(str))
    classifier = build_classifier(ModelSettings(name=str(tmp_path / "encoder"), head="new"), data)
    for method in ("temperature", "vector"):
        student = calibrated(classifier, data, method)
        student.save_pretrained(tmp_path / method)
        loaded = load_student(tmp_path / method)
        assert loaded.input_kind == "choices"
        assert np.abs(loaded.predict_proba(data) - student.predict_proba(data)).max() < 1e-6
        assert (loaded.calibrator is None) == (method == "temperature")
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path / "temperature")
    batch = classifier.inputs.prepare(data).batch(np.arange(3))
    expected = calibrated(classifier, data).predict_proba(data)[:3]
    np.testing.assert_allclose(model(**batch).logits.softmax(1).detach().numpy(), expected, atol=1e-5)


def test_folders_that_hold_something_else_are_refused(run, classifier, tmp_path):
    student = as_student(classifier)
    with pytest.raises(InputError, match="folder of a run"):
        student.save_pretrained(run)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="a file, not a folder"):
        student.save_pretrained(tmp_path / "file")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with pytest.raises(InputError, match="a link that leads nowhere"):
        student.save_pretrained(tmp_path / "circle")
    (tmp_path / "project" / "encoder").mkdir(parents=True)
    for name in ("README.md", "calibrator.json", "encoder/mine.txt"):
        (tmp_path / "project" / name).write_text("mine")
    with pytest.raises(InputError, match="not empty and holds no saved student.*give a new folder"):
        student.save_pretrained(tmp_path / "project")
    for name in ("README.md", "calibrator.json", "encoder/mine.txt"):
        assert (tmp_path / "project" / name).read_text() == "mine"


def test_a_student_is_saved_where_one_of_another_kind_was(classifier, tmp_path):
    as_student(classifier).save_pretrained(tmp_path)
    as_student(build_classifier(SMALL, vectors())).save_pretrained(tmp_path)
    assert load_student(tmp_path).input_kind == "vectors"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "README.md", "distilcal.json", "manifest.json", "network.safetensors",
    ]  # fmt: skip
    as_student(classifier).save_pretrained(tmp_path)
    assert load_student(tmp_path).input_kind == "texts"


def test_files_of_the_user_stay(classifier, tmp_path):
    (tmp_path / ".git").mkdir()
    as_student(classifier).save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    as_student(classifier).save_pretrained(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / ".git").is_dir()
    assert not list(tmp_path.glob(".*.part"))


def test_the_folder_may_be_a_disk_of_its_own(classifier, tmp_path, monkeypatch):
    """A volume of a container, or a link to another disk: files cannot be renamed onto it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    renamed = os.replace

    def on_one_disk(source, target):
        if (disk in Path(source).parents) != (disk in Path(target).parents):
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        renamed(source, target)

    monkeypatch.setattr(os, "replace", on_one_disk)
    for _ in range(2):
        as_student(classifier).save_pretrained(disk)
        assert load_student(disk).classes == classifier.classes
    assert [path.name for path in tmp_path.iterdir()] == ["disk"]
    assert not list(disk.glob(".*"))


# ---- the model card ----------------------------------------------------------------------------------------------------


def front_matter(folder):
    _, head, body = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(head), body


def test_the_card_has_the_figures_of_the_run(run, tmp_path):
    load_student(run).save_pretrained(tmp_path)
    head, body = front_matter(tmp_path)
    assert head["library_name"] == "transformers"
    assert head["pipeline_tag"] == "text-classification"
    assert "base_model" not in head  # it was a local folder
    facts = json.loads((run / "metrics.json").read_text())["stages"]["student"]
    for split in ("test", "other"):
        scores = facts["sets"][split]["calibrated"]
        for metric in ("accuracy", "nll", "ece"):
            assert f"{scores[metric]['value']:.3f} \\[{scores[metric]['low']:.3f}, {scores[metric]['high']:.3f}\\]" in body
    assert f"ccept above {facts['threshold']['confidence']:.3f}" in body
    assert "truncation=True" in body
    assert "[stages.student.train]" in body
    assert str(run.parent) not in body
    assert (tmp_path / "reliability.png").read_bytes().startswith(b"\x89PNG")


def test_a_card_without_matplotlib_says_so(run, tmp_path, monkeypatch):
    def missing(*_):
        raise MissingDependencyError("no matplotlib")

    monkeypatch.setattr("distilcal.report.figures.reliability_figure", missing)
    load_student(run).save_pretrained(tmp_path)
    assert "matplotlib was not installed" in front_matter(tmp_path)[1]
    assert not (tmp_path / "reliability.png").exists()


def test_names_of_users_are_shown_literally(classifier, tmp_path):
    odd = replace(classifier, classes=("a|b\n# c", '<script>"`'))
    odd.settings = classifier.settings.replace(name="some/model")
    student = as_student(odd, name="x: [y]")
    student.save_pretrained(tmp_path)
    head, body = front_matter(tmp_path)
    assert head["base_model"] == "some/model"
    assert "a\\|b \\# c, &lt;script&gt;" in body
    assert "\n# c" not in body


def test_images_of_another_size_are_refused_as_by_an_onnx_file(tmp_path):
    student = as_student(build_classifier(ModelSettings(name="resnet8"), pictures(4)))
    student.save_pretrained(tmp_path / "saved")
    for loaded in (student, load_student(tmp_path / "saved")):
        assert len(loaded.predict(pictures(2))) == 2
        with pytest.raises(InputError, match="the model reads images of 32 × 32 × 3, got 32 × 16 × 3"):
            loaded.predict(np.zeros((1, 32, 16, 3), np.uint8))


@pytest.mark.parametrize(
    ("settings", "data", "task"), [(SMALL, vectors(20), "tabular"), (ModelSettings(name="resnet8"), pictures(8), "image")]
)
def test_cards_of_other_networks_name_distilcal(tmp_path, settings, data, task):
    as_student(build_classifier(settings, data)).save_pretrained(tmp_path)
    head, _ = front_matter(tmp_path)
    assert head["library_name"] == "distilcal"
    assert head["pipeline_tag"] == f"{task}-classification"


@pytest.mark.parametrize("limit", [0, 300, 2000])
@pytest.mark.parametrize("kind", ["texts", "vectors"])
def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(classifier, tmp_path, kind, limit):
    """Whoever writes the files, and whichever of them is the first that does not fit."""
    resource = pytest.importorskip("resource")
    if kind == "vectors":
        classifier = build_classifier(ModelSettings(name="mlp", hidden=(300,)), vectors(4))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError, match="File too large|could not be"):
            as_student(classifier).save_pretrained(tmp_path / "student")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
