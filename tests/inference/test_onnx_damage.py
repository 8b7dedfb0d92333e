"""An exported file that is not as it was written is refused, whatever was changed in it."""

import json

import numpy as np
import onnx
import pytest
from served import dev_rows
from shell import command
from small_onnx import write_word_student

from distilcal.errors import InputError
from distilcal.inference.onnx import load_onnx
from distilcal.inference.onnx_description import METADATA, decode_dev_rows, decode_teacher_correct, encode_dev_rows
from distilcal.inference.onnx_digest import LENGTH, append_digest, check_digest
from distilcal.predictions import Predictions
from distilcal.selective import threshold


@pytest.fixture
def student(tmp_path):
    return write_word_student(tmp_path / "words.onnx", dev_rows(40))


def test_what_was_exported_is_an_ordinary_model(student):
    model = onnx.load(student)
    onnx.checker.check_model(model)
    assert [entry.key for entry in model.metadata_props] == [METADATA, "distilcal_digest"]
    assert check_digest(student)
    assert load_onnx(student).predict(["good"]) == ["pos"]


def test_one_flipped_bit_anywhere_is_refused(student):
    content = student.read_bytes()
    rng = np.random.default_rng(0)
    places = [0, len(content) - 1, len(content) - LENGTH, *rng.integers(0, len(content), 150)]
    for place in places:
        damaged = bytearray(content)
        damaged[place] ^= 1 << int(rng.integers(8))
        student.write_bytes(damaged)
        with pytest.raises(InputError, match="words.onnx: .*export it again"):
            load_onnx(student)


@pytest.mark.parametrize("cut", [1, LENGTH, LENGTH + 1, 400])
def test_a_file_that_lacks_its_end_is_refused(student, cut):
    student.write_bytes(student.read_bytes()[:-cut])
    with pytest.raises(InputError, match="words.onnx: .*export it again"):
        load_onnx(student)


def test_a_file_of_an_earlier_version_has_no_digest_and_is_read(tmp_path):
    path = write_word_student(tmp_path / "old.onnx", has_digest=False)
    path.write_bytes(path.read_bytes()[:-LENGTH])
    assert not check_digest(path)
    assert load_onnx(path).predict(["good"]) == ["pos"]


def test_without_a_digest_a_description_that_is_no_text_is_refused(tmp_path):
    path = write_word_student(tmp_path / "old.onnx", has_digest=False)
    path.write_bytes(path.read_bytes()[:-LENGTH].replace(b'"classes"', b'"cl\xffsses"'))
    with pytest.raises(InputError, match="old.onnx: the file is damaged: .*export it again"):
        load_onnx(path)


def test_the_commands_say_so_in_one_line(student, tmp_path):
    content = bytearray(student.read_bytes())
    content[len(content) // 2] ^= 1
    student.write_bytes(content)
    (tmp_path / "new.csv").write_text("text\ngood\n")
    for arguments in (("predict", student, tmp_path / "new.csv", "-o", tmp_path / "out.csv"), ("serve", student)):
        done = command(*arguments, code=2)
        assert done.stderr == (
            f"error: {student}: the file is damaged: it is not as it was exported; copy it again, or export it again\n"
        )
    assert not (tmp_path / "out.csv").exists()


def rewritten(path, **changes):
    """The same file with another description, as if it had been exported so."""
    model = onnx.load(path)
    del model.metadata_props[1]
    (entry,) = model.metadata_props
    values = {**json.loads(entry.value), **changes}
    entry.value = json.dumps({name: value for name, value in values.items() if value is not ...})
    path.write_bytes(append_digest(model.SerializeToString()))
    return path


DEV = encode_dev_rows(dev_rows(40))
TOKENIZER = {"file": "words.tokenizer.json", "sha256": "0", "pad_id": 0, "token_types": False}
WRONG = [
    {"classes": ...}, {"classes": "np"}, {"classes": []}, {"classes": [1, 2]}, {"classes": ["neg", "neg"]}, {"classes": None},
    {"classes": {"neg": 0}}, {"classes": ["neg", "pos", "more"]}, {"input_kind": "sounds"}, {"input_kind": None},
    {"input_kind": "vectors"}, {"input_kind": []}, {"apart": "yes"}, {"max_length": "64"}, {"max_length": None},
    {"tokenizer": None}, {"tokenizer": []}, {"tokenizer": "x"}, {"tokenizer": {}}, {"tokenizer": {**TOKENIZER, "file": 3}},
    {"tokenizer": {**TOKENIZER, "file": ""}}, {"tokenizer": {**TOKENIZER, "sha256": None}},
    {"tokenizer": {**TOKENIZER, "pad_id": "0"}}, {"tokenizer": {**TOKENIZER, "token_types": True}},
    {"tokenizer": {**TOKENIZER, "more": 1}}, {"tokenizer": {**TOKENIZER, "token_types": None}}, {"calibration": []},
    {"calibration": {}}, {"calibration": {"kind": "temperature"}, "calibration_in_graph": False}, {"calibration_in_graph": 1},
    {"calibration": {"kind": 3}}, {"required_accuracy": "high"}, {"required_accuracy": 7}, {"required_accuracy": float("nan")},
    {"required_accuracy": None}, {"versions": []}, {"has_digest": "x"}, {"format": 0}, {"format": True}, {"format": [1]},
    {"dev": []}, {"dev": "x"}, {"dev": {}}, {"dev": {**DEV, "rows": 41}}, {"dev": {**DEV, "rows": "40"}},
    {"dev": {**DEV, "rows": -1}}, {"dev": {**DEV, "confidence": "%%%"}}, {"dev": {**DEV, "confidence": None}},
    {"dev": {**DEV, "correct": ""}}, {"dev": {**DEV, "teacher_correct": 5}}, {"dev": {**DEV, "confidence": "AAAA"}},
]  # fmt: skip


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: json.dumps({k: str(v)[:20] for k, v in changes.items()}))
def test_a_description_of_another_shape_is_one_clear_error(student, changes):
    with pytest.raises(InputError, match="."):
        load_onnx(rewritten(student, **changes))


def test_dev_rows_are_read_as_they_were_written():
    dev, correct = dev_rows(13), np.arange(13) % 3 == 0
    stored = json.loads(json.dumps(encode_dev_rows(dev, correct)))
    np.testing.assert_array_equal(decode_dev_rows(stored).confidence, dev.confidence)
    np.testing.assert_array_equal(decode_teacher_correct(stored), correct)


def test_a_threshold_close_to_one_stays_below_the_answers_that_it_was_chosen_on():
    gaps = np.linspace(18, 30, 600)  # in 32 bits all of these confidences would be 1, and no answer is
    dev = Predictions.from_logits(np.column_stack([gaps, np.zeros(600)]), np.zeros(600, int), classes=("a", "b"))
    limit = threshold(decode_dev_rows(encode_dev_rows(dev)), accuracy=0.95)
    assert limit.confidence < 1
    assert (dev.confidence >= limit.confidence).all()


def test_dev_rows_of_earlier_files_are_read():
    stored = encode_dev_rows(dev_rows(2))
    stored["confidence"] = "AAAAPwAAQD8="  # 0.5 and 0.75 in 32 bits
    assert decode_dev_rows(stored).confidence.tolist() == [0.5, 0.75]


def test_confidences_that_cannot_be_are_refused():
    stored = encode_dev_rows(dev_rows(2))
    stored["confidence"] = "AADgQAAA4EA="  # twice 7
    with pytest.raises(InputError, match="model.onnx: its dev rows are damaged; write it again"):
        decode_dev_rows(stored, "model.onnx")
