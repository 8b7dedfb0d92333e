"""Resuming: the same end after an interruption, and states of other runs are not used."""

import numpy as np
import pytest
import torch
from small import DEV, TRAIN, Interrupted, student, teacher, term, weights
from torch.nn.functional import cross_entropy

from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.data import Dataset
from distilcal.io.folders import DamagedWarning
from distilcal.training import fit
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


def test_the_state_of_another_run_or_a_damaged_one_is_not_used(tmp_path):
    how = TrainSettings(epochs=2, lr=0.05)
    fit(student(), TRAIN, DEV, [term("cross_entropy")], how, checkpoint_dir=tmp_path)
    with pytest.warns(DamagedWarning, match="another run"):
        result = fit(student(), TRAIN, DEV, [term("focal")], how, checkpoint_dir=tmp_path)
    assert result.resumed_at == 0
    content = (tmp_path / "last.safetensors").read_bytes()
    (tmp_path / "last.safetensors").write_bytes(content[: len(content) // 2])
    with pytest.warns(DamagedWarning):
        assert fit(student(), TRAIN, DEV, [term("focal")], how, checkpoint_dir=tmp_path).resumed_at == 0


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
