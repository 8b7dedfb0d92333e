"""Exported students answer without torch, and what is no export of ours is one clear error."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from small import SMALL, vectors
from tiny import reviews, save_model

from distilcal.data import Dataset, choices, texts
from distilcal.errors import InputError, MissingDependencyError
from distilcal.export import as_student, load_student
from distilcal.inference.onnx import load_onnx
from distilcal.inference.onnx_description import FORMAT, METADATA, OnnxDescription, TokenizerFile
from distilcal.models import build_classifier

ODD = ["-", "great", "film " * 100, "😀 naïve film", "[SEP] [CLS] great [PAD]", "a\tb\nc", "GREAT Lovely"]
PAIRS = [(first, second) for first in ODD for second in reversed(ODD)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    save_model(folder / "model", labels=("neg", "pos"), num_hidden_layers=1)
    load_student(folder / "model").export_onnx(folder / "student.onnx")
    as_student(build_classifier(SMALL, vectors())).export_onnx(folder / "vectors.onnx")
    return folder


def test_texts_and_pairs_are_read_as_in_training(folder):
    student, loaded = load_student(folder / "model"), load_onnx(folder / "student.onnx")
    for examples in (ODD, PAIRS):
        np.testing.assert_allclose(loaded.predict_proba(examples), student.predict_proba(examples), atol=1e-6)


def test_tokens_are_those_of_training(folder):
    """Also where a text is cut, in pairs of any lengths."""
    student, backend = load_student(folder / "model"), load_onnx(folder / "student.onnx").backend
    for inputs in (texts(ODD), texts([a for a, _ in PAIRS], [b for _, b in PAIRS])):
        expected = student.classifier.inputs.prepare(Dataset(inputs))
        tokens = backend._tokenize(inputs)
        assert (tokens.ids == expected.ids).all()
        assert (tokens.starts == expected.starts).all()


def test_batches_are_padded_to_their_own_longest_text(folder):
    loaded = load_onnx(folder / "student.onnx", threads=1)
    rng = np.random.default_rng(0)
    data = Dataset(texts(["film " * n for n in rng.integers(1, 25, 30)]), ids=np.arange(30).astype(str))
    masks = [(len(rows), tensors["attention_mask"]) for rows, tensors in loaded.backend._batches(data)]
    assert [count for count, _ in masks] == [8, 8, 8, 6]
    assert all(mask.sum(axis=1).max() == mask.shape[1] for _, mask in masks)
    assert masks[0][1].shape[1] > masks[3][1].shape[1]
    seen = []
    loaded.predict_proba(data, on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(8, 30), (16, 30), (24, 30), (30, 30)]


def test_no_torch_is_needed(folder):
    code = f"""
import sys
for name in ("torch", "transformers", "pydantic", "pandas", "sklearn"):
    sys.modules[name] = None
from distilcal.inference.onnx import load_onnx
student = load_onnx({str(folder / "student.onnx")!r}, threads=1)
answer = student.predict(["great film"])
assert answer[0] in ("neg", "pos")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_wrong_kinds_of_input_are_refused(folder):
    with pytest.raises(InputError, match="reads texts, got vectors"):
        load_onnx(folder / "student.onnx").predict(np.zeros((2, 3)))
    with pytest.raises(InputError, match="vectors of 6, got 5"):
        load_onnx(folder / "vectors.onnx").predict(np.zeros((2, 5)))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        load_onnx(tmp_path / "student.onnx")


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x07" * 50], ids=["empty", "text", "bytes"])
def test_a_file_that_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "student.onnx").write_bytes(content)
    with pytest.raises(InputError, match="student.onnx: .*export it again"):
        load_onnx(tmp_path / "student.onnx")


def test_a_file_that_was_cut_off_is_refused(folder, tmp_path):
    content = (folder / "student.onnx").read_bytes()
    (tmp_path / "student.onnx").write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="student.onnx: .*export it again"):
        load_onnx(tmp_path / "student.onnx")


def changed(source, target, change):
    """Copy a file with another description, as if it had been written so."""
    model = onnx.load(source)
    (digest,) = [entry for entry in model.metadata_props if entry.key == "distilcal_digest"]
    model.metadata_props.remove(digest)
    (entry,) = [entry for entry in model.metadata_props if entry.key == METADATA]
    entry.value = change(entry.value)
    if not entry.value:
        model.metadata_props.remove(entry)
    onnx.save(model, target)
    return target


def test_a_model_of_somebody_else_is_refused(folder, tmp_path):
    path = changed(folder / "vectors.onnx", tmp_path / "foreign.onnx", lambda text: "")
    with pytest.raises(InputError, match="not exported by distilcal"):
        load_onnx(path)


def test_a_newer_format_is_refused(folder, tmp_path):
    def newer(text):
        return json.dumps({**json.loads(text), "format": FORMAT + 1, "more": 1})

    with pytest.raises(InputError, match=f"format {FORMAT + 1}.*newer distilcal"):
        load_onnx(changed(folder / "vectors.onnx", tmp_path / "new.onnx", newer))


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": "x"}'])
def test_a_damaged_description_is_refused(folder, tmp_path, text):
    with pytest.raises(InputError, match="description is damaged"):
        load_onnx(changed(folder / "vectors.onnx", tmp_path / "bad.onnx", lambda _: text))


def test_a_missing_or_foreign_tokenizer_is_refused(folder, tmp_path):
    path = tmp_path / "student.onnx"
    path.write_bytes((folder / "student.onnx").read_bytes())
    with pytest.raises(InputError, match="tokenizer student.tokenizer.json is missing"):
        load_onnx(path)
    tokenizer = (folder / "student.tokenizer.json").read_text()
    (tmp_path / "student.tokenizer.json").write_text(tokenizer.replace("film", "movie"))
    with pytest.raises(InputError, match="not the tokenizer it was exported with"):
        load_onnx(path)


@pytest.mark.parametrize("package", ["onnxruntime", "tokenizers"])
def test_a_missing_package_is_named_with_its_remedy(folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"needs {package}; pip install 'distilcal\[onnx\]'"):
        load_onnx(folder / "student.onnx")


def test_a_description_survives_its_json():
    tokenizer = TokenizerFile("x.tokenizer.json", "00", pad_id=0, token_types=True)
    description = OnnxDescription(("ä", "b"), "texts", max_length=7, tokenizer=tokenizer, versions={"distilcal": "1"})
    assert OnnxDescription.from_json(description.to_json(), "file") == description


def test_another_number_of_choices_is_refused(folder):
    student = replace(load_onnx(folder / "student.onnx"), input_kind="choices")
    with pytest.raises(InputError, match="reads 2 choices, got 3; give as many endings everywhere"):
        student.predictions(Dataset(choices(["a"], [["b", "c", "d"]])))


def test_reviews_are_answered_like_torch(folder):
    data = reviews(50)
    expected = load_student(folder / "model").predictions(data)
    found = load_onnx(folder / "student.onnx").predictions(data)
    assert (found.labels == expected.labels).all()
    np.testing.assert_allclose(found.probs, expected.probs, atol=1e-6)
