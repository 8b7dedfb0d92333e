"""Resuming: the same end after an interruption, and states of other runs are not used."""

import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small import DEV, TRAIN, Interrupted, student, teacher, term, weights
from torch.nn.functional import cross_entropy

from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.data import Dataset
from distilcal.dynamics import Recorder
from distilcal.errors import NewerFormatError, StoreError
from distilcal.io.folders import DamagedWarning
from distilcal.training import fit
from distilcal.training.checkpoint import load_tensors, save_tensors
from distilcal.views import build_term

BY_ACCURACY = TrainSettings(epochs=4, batch=16, lr=0.05, choose="accuracy")
BY_STEPS = TrainSettings(epochs=1, batch=0, lr=0.05, min_steps=40, patience=3, warmup=0.1)


@pytest.mark.parametrize("how", [BY_ACCURACY, BY_STEPS], ids=["by accuracy", "by steps"])
@pytest.mark.parametrize("name", ["cross_entropy", "crl", "pskd", "adafocal", "crd", "kd"])
@pytest.mark.parametrize("stop", [1, 2])
def test_an_interrupted_run_ends_with_the_same_numbers(tmp_path, how, name, stop):
    settings = ModelSettings(name="mlp", hidden=(7,), dropout=0.3)
    whole = student(settings=settings)
    expected = fit(whole, TRAIN, DEV, [term("cross_entropy"), term(name)], how, **teacher(), checkpoint_dir=tmp_path / "whole")

    def interrupt(step):
        if step.epoch == stop and step.step > 2:
            raise Interrupted

    broken = student(settings=settings)
    import distilcal.training.loop as loop

    before, loop.PROGRESS_INTERVAL = loop.PROGRESS_INTERVAL, -1.0
    try:
        with pytest.raises(Interrupted):
            fit(
                broken,
                TRAIN,
                DEV,
                [term("cross_entropy"), term(name)],
                how,
                **teacher(),
                checkpoint_dir=tmp_path / "b",
                on_progress=interrupt,
            )
    finally:
        loop.PROGRESS_INTERVAL = before
    again = student(settings=settings)
    result = fit(again, TRAIN, DEV, [term("cross_entropy"), term(name)], how, **teacher(), checkpoint_dir=tmp_path / "b")
    assert result.resumed_at == stop
    assert torch.equal(weights(again), weights(whole))
    assert [h["dev"] for h in result.history] == [h["dev"] for h in expected.history]
    assert [h["losses"] for h in result.history] == [h["losses"] for h in expected.history]
    np.testing.assert_array_equal(result.dev_logits, expected.dev_logits)


def test_logits_on_dev_of_reduced_precision_are_not_kept_by_a_run_that_resumes_without_it(tmp_path, monkeypatch):
    """Precision "auto" is bfloat16 on a GPU and float32 on the machine without one that goes on."""
    how = TrainSettings(epochs=2, lr=0.05, choose_among=(1,))

    def interrupt(epoch):
        raise Interrupted

    with monkeypatch.context() as with_gpu, pytest.raises(Interrupted):
        with_gpu.setattr("distilcal.training.distributed._mixed_precision", lambda precision: "bf16")
        fit(student(), TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path, on_epoch=interrupt)
    result = fit(student(), TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path)
    assert (result.resumed_at, result.best_epoch) == (1, 0)
    assert result.dev_logits is None


def test_the_state_of_another_run_is_not_used(tmp_path):
    how = TrainSettings(epochs=2, lr=0.05)
    fit(student(), TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path)
    with pytest.warns(DamagedWarning, match="another run"):
        result = fit(student(), TRAIN, DEV, [term("focal")], how, checkpoint_dir=tmp_path)
    assert result.resumed_at == 0
    assert not (tmp_path / ".last.safetensors.part").exists()


@pytest.mark.parametrize("change", ["soft labels", "settings of a memory", "a function of one's own"])
def test_a_state_is_resumed_by_the_same_fit_only(tmp_path, change):
    soft = Dataset(TRAIN.inputs, TRAIN.labels, TRAIN.classes, label_probs=np.full((90, 3), 1 / 3))
    how = TrainSettings(epochs=1, lr=0.05)

    def once(logits, labels):
        return cross_entropy(logits, labels)

    def twice(logits, labels):
        return 2 * cross_entropy(logits, labels)

    calls = {
        "soft labels": [([term("cross_entropy")], False), ([term("cross_entropy")], True)],
        "settings of a memory": [([term("pskd", alpha=0.1)], False), ([term("pskd", alpha=0.9)], False)],
        "a function of one's own": [([build_term(once)], False), ([build_term(twice)], False)],
    }[change]
    fit(student(), soft, DEV, calls[0][0], how, soft_labels=calls[0][1], checkpoint_dir=tmp_path)
    with pytest.warns(DamagedWarning, match="another run"):
        assert fit(student(), soft, DEV, calls[1][0], how, soft_labels=calls[1][1], checkpoint_dir=tmp_path).resumed_at == 0


def test_a_finished_run_trains_nothing_more(tmp_path):
    how = TrainSettings(epochs=2, lr=0.05)
    first, second = student(), student()
    fit(first, TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path)
    result = fit(
        second, TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path, on_progress=lambda s: pytest.fail("trained")
    )
    assert result.resumed_at == 2
    assert torch.equal(weights(first), weights(second))


# ---- damaged files -----------------------------------------------------------------------------------------------------

LONG = TrainSettings(epochs=4, batch=16, lr=0.05, choose="accuracy")
TERMS = ("cross_entropy", "crl")


def train(folder, stop=None, recorder=None):
    """Train, interrupted in the epoch of this number if one is given."""

    def interrupt(step):
        if step.epoch == stop:
            raise Interrupted

    classifier = student()
    result = fit(
        classifier,
        TRAIN,
        DEV,
        [term(name) for name in TERMS],
        LONG,
        checkpoint_dir=folder,
        recorder=recorder,
        on_progress=interrupt,
    )
    return classifier, result


def new_recorder():
    return Recorder(TRAIN.ids, TRAIN.labels, TRAIN.classes)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A folder after three epochs of four, and the weights, the history and the dynamics of training without interruption."""
    folder = tmp_path_factory.mktemp("interrupted")
    recorder = new_recorder()
    whole, expected = train(folder / "whole", recorder=recorder)
    with pytest.raises(Interrupted):
        train(folder / "work", stop=3, recorder=new_recorder())
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["last.safetensors", "previous.safetensors"]
    return folder / "work", weights(whole), [h["dev"] for h in expected.history], recorder.dynamics()


def damage(path, how):
    content = bytearray(path.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    if how == "cut off":
        content = content[: len(content) // 2]
    elif how == "empty":
        content = b""
    elif how == "longer":
        content += b"more"
    elif how == "header":
        content[header // 2] ^= 1
    elif how == "first":
        content[header] ^= 1
    elif how == "last":
        content[-1] ^= 128
    path.write_bytes(content)


@pytest.mark.parametrize("how", ["cut off", "empty", "longer", "header", "first", "last"])
@pytest.mark.parametrize(
    ("files", "resumed_at", "line"),
    [
        (["last"], 2, "resumes from the checkpoint before it"),
        (["previous"], 3, ""),
        (["last", "previous"], 0, "starts from the beginning"),
    ],
)
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_ends_with_the_same_numbers(
    interrupted, tmp_path, how, files, resumed_at, line
):
    folder, expected_weights, expected_history, expected_dynamics = interrupted
    shutil.copytree(folder, tmp_path / "work")
    for file in files:
        damage(tmp_path / "work" / f"{file}.safetensors", how)
    recorder = new_recorder()
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always", DamagedWarning)
        trained, result = train(tmp_path / "work", recorder=recorder)
    assert result.resumed_at == resumed_at
    lines = [str(warning.message) for warning in shown if warning.category is DamagedWarning]
    assert len(lines) == (0 if files == ["previous"] else len(files))
    assert not line or line in lines[-1]
    assert torch.equal(weights(trained), expected_weights)
    assert [h["dev"] for h in result.history] == expected_history
    np.testing.assert_array_equal(recorder.dynamics().confidence, expected_dynamics.confidence)


def test_every_flipped_bit_is_found(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "a": torch.arange(3, dtype=torch.float32),
        "b": torch.tensor(7),
        "c": torch.tensor([True]),
        "d": torch.ones(2, dtype=torch.bfloat16),
        "e": torch.empty(0, 3),
    }
    save_tensors(path, tensors, {"key": "k"})
    loaded, facts = load_tensors(path, "k")
    assert facts["key"] == "k"
    assert all(torch.equal(loaded[name], value) for name, value in tensors.items())
    content = path.read_bytes()
    harmless = 0
    for i in range(8 * len(content)):
        changed = bytearray(content)
        changed[i // 8] ^= 1 << i % 8
        path.write_bytes(changed)
        try:
            loaded, facts = load_tensors(path, "k")
        except StoreError:
            continue
        harmless += 1  # spaces and the like: all that is used is the same
        assert facts["key"] == "k"
        assert loaded.keys() == tensors.keys()
        assert all(loaded[name].dtype == value.dtype and torch.equal(loaded[name], value) for name, value in tensors.items())
    assert harmless < 50


def test_a_kill_between_two_renames_resumes_from_the_generation_before(interrupted, tmp_path):
    folder, expected_weights, *_ = interrupted
    shutil.copytree(folder, tmp_path / "work")
    (tmp_path / "work" / "last.safetensors").unlink()
    trained, result = train(tmp_path / "work", recorder=new_recorder())
    assert result.resumed_at == 2
    assert torch.equal(weights(trained), expected_weights)


def test_checkpoints_of_other_versions_are_named(tmp_path):
    path = tmp_path / "last.safetensors"
    assert load_tensors(path) is None
    save_tensors(path, {"a": torch.ones(2)}, {"key": "k", "format": 99})
    with pytest.raises(NewerFormatError, match="format 99"):
        load_tensors(path)
    save_file({"a": torch.ones(2)}, path, {"facts": '{"key": "k"}'})
    with pytest.raises(StoreError, match="earlier version"):
        load_tensors(path)
    for facts in ("[]", "{", '{"format": 2}'):
        save_file({"a": torch.ones(2)}, path, {"facts": facts})
        with pytest.raises(StoreError, match="damaged"):
            load_tensors(path)
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(StoreError, match="damaged"):
        load_tensors(path)


@pytest.mark.skipif(os.name == "nt", reason="modes of Unix")
def test_a_checkpoint_can_be_read_by_whom_the_user_lets_read_new_files(tmp_path):
    before = os.umask(0o002)
    try:
        save_tensors(tmp_path / "last.safetensors", {"a": torch.ones(2)}, {"key": "k"})
    finally:
        os.umask(before)
    assert (tmp_path / "last.safetensors").stat().st_mode & 0o777 == 0o664


def test_a_checkpoint_that_cannot_be_read_is_not_damaged_and_stays(interrupted, tmp_path, monkeypatch):
    """It is of another user, who shares the store."""
    shutil.copytree(interrupted[0], tmp_path / "work")

    def refused(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch, pytest.raises(PermissionError, match="last.safetensors"):
        patch.setattr(Path, "open", refused)
        train(tmp_path / "work", recorder=new_recorder())
    _, result = train(tmp_path / "work", recorder=new_recorder())
    assert result.resumed_at
