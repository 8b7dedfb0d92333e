"""A model folder whose files are damaged or of another shape is one clear error, and a stage of a run is not saved onto."""

import json
import shutil

import numpy as np
import pytest
from shell import command
from small import SMALL, vectors
from tiny import save_model

from distilcal.calibrate import fit_isotonic
from distilcal.errors import InputError
from distilcal.export import as_student, load_student
from distilcal.models import build_classifier
from distilcal.predictions import Predictions

SHAPES = ["", "{", "[]", '"x"', "null", "3", "NaN", "{}", '{"a": 1}', "[" * 100_000, "\x00\xff"]
IDS = ["empty", "cut off", "list", "text", "null", "number", "NaN", "no keys", "other keys", "deep", "bytes"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A text model and a vector model whose calibrator lies beside it."""
    place = tmp_path_factory.mktemp("saved")
    save_model(place / "plain", labels=("neg", "pos"), num_hidden_layers=1)
    load_student(place / "plain").save_pretrained(place / "texts")
    rng = np.random.default_rng(0)
    dev = Predictions.from_logits(rng.normal(size=(60, 3)), rng.integers(0, 3, 60), classes=("a", "b", "c"), name="dev")
    classifier = build_classifier(SMALL, vectors())
    as_student(classifier, calibrator=fit_isotonic(dev), dev=dev).save_pretrained(place / "vectors")
    return place


def copy(saved, name, tmp_path):
    """A copy without checksums, as earlier versions wrote it."""
    shutil.copytree(saved / name, tmp_path / name)
    (tmp_path / name / "manifest.json").unlink(missing_ok=True)
    return tmp_path / name


@pytest.mark.parametrize("name", ["texts", "vectors"])
def test_one_flipped_bit_of_any_file_is_refused(saved, tmp_path, name):
    folder = tmp_path / name
    shutil.copytree(saved / name, folder)
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".md", ".png")]
    assert {"manifest.json", "distilcal.json"} < {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        damaged = bytearray(content)
        damaged[len(damaged) * 2 // 3] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=str(folder)):
            load_student(folder)
        path.unlink()
        if path.name != "manifest.json":
            with pytest.raises(InputError, match="missing or damaged.*save or copy it again"):
                load_student(folder)
        path.write_bytes(content)
    (folder / "README.md").write_text("my own words")
    assert load_student(folder).calibration == load_student(saved / name).calibration


@pytest.mark.parametrize("content", SHAPES, ids=IDS)
@pytest.mark.parametrize(
    "file", ["texts/distilcal.json", "texts/config.json", "texts/tokenizer.json", "vectors/distilcal.json"]
)
def test_json_of_another_shape_is_one_clear_error(saved, tmp_path, file, content):
    folder = copy(saved, file.partition("/")[0], tmp_path)
    (tmp_path / file).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError, match=str(folder)):
        load_student(folder)


@pytest.mark.parametrize("length", [0, -1, "x", None, [], True, float("nan"), {"a": 1}], ids=repr)
def test_a_model_max_length_that_is_none_is_refused(saved, tmp_path, length):
    folder = copy(saved, "plain", tmp_path)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_max_length": length}))
    if length is None:  # transformers has no limit then
        assert load_student(folder).classifier.inputs.max_length > 1
        return
    with pytest.raises(InputError, match="model_max_length|cannot be loaded"):
        load_student(folder)


WRONG = [
    {"classes": "ab"}, {"classes": []}, {"classes": ["neg"] * 2}, {"classes": [1, 2]}, {"classes": None}, {"model": []},
    {"model": {"nmae": "x"}}, {"model": None}, {"multiple_choice": "no"}, {"feed": 3}, {"max_length": "12"},
    {"max_length": -1}, {"max_length": 10**15}, {"max_length": True}, {"format": 2}, {"format": "1"}, {"format": 0},
    {"calibration": []}, {"calibration": {}}, {"calibration": {"kind": "isotonic", "folded": False}},
    {"calibration": {"kind": "isotonic", "folded": False, "file": "../../secret.npz"}},
    {"calibration": {"kind": 3, "folded": True}}, {"dev": []}, {"dev": {"rows": 1}}, {"required_accuracy": "x"},
    {"required_accuracy": 1.5}, {"required_accuracy": float("nan")}, {"encoder": "../elsewhere"},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: json.dumps(changes)[:40])
def test_values_of_other_types_are_one_clear_error(saved, tmp_path, changes):
    folder = copy(saved, "texts", tmp_path)
    path = folder / "distilcal.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match="."):
        load_student(folder)


@pytest.mark.parametrize("changes", [{"width": 0}, {"width": "6"}, {"width": 10**13}, {"width": 7}, {"classes": ["a", "b"]}])
def test_a_network_of_another_size_is_refused(saved, tmp_path, changes):
    folder = copy(saved, "vectors", tmp_path)
    path = folder / "distilcal.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(InputError, match="distilcal.json|weights cannot be loaded"):
        load_student(folder)


def stages(**changes):
    facts = {"calibrator": None, "teacher": "", "terms": [], "parameters": 3, **changes}
    return {"stages": {"student": {name: value for name, value in facts.items() if value is not ...}}}


@pytest.mark.parametrize(
    "facts",
    [
        [], "x", None, {}, {"stages": []}, {"stages": {}}, {"stages": {"student": 3}}, stages(calibrator=["temperature"]),
        stages(calibrator="magic"), stages(calibrator=...), stages(teacher=None), stages(teacher=...), stages(terms="x"),
    ],
    ids=repr,
)  # fmt: skip
def test_metrics_of_another_shape_are_one_clear_error(tmp_path, facts):
    (tmp_path / "metrics.json").write_text(json.dumps(facts))
    with pytest.raises(InputError, match=r"metrics\.json: this file is damaged; run the recipe of the run again"):
        load_student(tmp_path)


def test_a_missing_model_folder_is_said_to_be_missing(tmp_path):
    (tmp_path / "metrics.json").write_text(json.dumps(stages()))
    with pytest.raises(InputError, match=r"student.model: there is no such folder; run the recipe"):
        load_student(tmp_path)
    (tmp_path / "metrics.json").write_text(json.dumps(stages(parameters=None)))
    with pytest.raises(InputError, match="'student' is known by its predictions only"):
        load_student(tmp_path)


def test_a_stage_is_not_saved_onto(saved, tmp_path):
    """Neither that of a run nor that of the store, under whatever name."""
    student = load_student(saved / "vectors")
    for mark, stage in (("stage.json", tmp_path / "run" / "student"), ("history.json", tmp_path / "store" / "stages" / "k1")):
        shutil.copytree(saved / "vectors", stage / "model")
        (stage / mark).write_text("{}")
        (tmp_path / f"link to {mark}").symlink_to(stage / "model")
        before = {path: path.read_bytes() for path in stage.rglob("*") if path.is_file()}
        for target in (stage / "model", tmp_path / f"link to {mark}", stage / "new"):
            with pytest.raises(InputError, match="part of the stage"):
                student.save_pretrained(target)
        assert {path: path.read_bytes() for path in stage.rglob("*") if path.is_file()} == before


def test_nothing_is_exported_onto_its_source(saved, tmp_path):
    folder = copy(saved, "vectors", tmp_path)
    before = (folder / "distilcal.json").read_bytes()
    (tmp_path / "link").symlink_to(folder)
    for target in (folder, tmp_path / "link", folder / ".." / "vectors"):
        assert "this output is the input" in command("export", folder, target, code=2).stderr
    assert (folder / "distilcal.json").read_bytes() == before
    assert "exported already" in command("export", tmp_path / "x.onnx", tmp_path / "y.onnx", code=2).stderr
    assert "ends in .onnx" in command("export", folder, tmp_path / "Y.ONNX", code=2).stderr
    (tmp_path / "folder.onnx").mkdir()
    assert "this is a folder" in command("serve", tmp_path / "folder.onnx", code=2).stderr
