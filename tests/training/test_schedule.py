"""Schedules and batches: the rate of each step, and every row once."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from distilcal.config.schema import TrainSettings
from distilcal.models.inputs import crop_and_flip
from distilcal.training.schedule import build_optimizer, epoch_batches, rate_factor, resolve_settings


def test_schedules():
    def factors(**settings):
        return [round(rate_factor(TrainSettings(**settings), s, 10, 2), 6) for s in range(10)]

    assert factors(schedule="none") == [1.0] * 10
    assert factors(schedule="linear") == [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert factors(schedule="linear", warmup=0.2)[:4] == [0.5, 1.0, 1.0, 0.875]
    assert factors(schedule="steps", milestones=(1, 3), gamma=0.1) == [1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.01, 0.01]
    cosine = factors(schedule="cosine")
    assert cosine[0] == 1
    assert cosine[5] == 0.5
    assert all(a > b for a, b in pairwise(cosine))


def test_decay_spares_biases_and_norms():
    made = build_optimizer(
        torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4)), [], TrainSettings(weight_decay=0.3)
    )
    assert [(g["weight_decay"], [p.dim() for p in g["params"]]) for g in made.param_groups] == [(0.3, [2]), (0.0, [1, 1, 1])]


def test_every_row_once_and_little_padding():
    lengths = np.random.default_rng(0).integers(3, 100, 1003)
    batches = epoch_batches(1003, lengths, 16, seed=0, epoch=0)
    assert sorted(np.concatenate(batches)) == list(range(1003))
    assert {len(b) for b in batches} <= {16, 1003 % 16}
    padded = sum(len(b) * lengths[b].max() for b in batches)
    assert padded < 1.1 * lengths.sum()
    other = epoch_batches(1003, lengths, 16, seed=0, epoch=1)
    assert not np.array_equal(np.concatenate(batches), np.concatenate(other))
    assert np.corrcoef([lengths[b].mean() for b in batches], np.arange(len(batches)))[0, 1] < 0.5


def test_images_are_cropped_and_flipped_one_by_one():
    images = torch.arange(5 * 3 * 8 * 8, dtype=torch.float32).view(5, 3, 8, 8) + 1
    made = crop_and_flip(images, torch.Generator().manual_seed(0), pad=2)
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2))
    for image, whole in zip(made, padded, strict=True):
        found = [
            (y, x, flip)
            for y in range(5)
            for x in range(5)
            for flip in (False, True)
            if torch.equal(image, whole[:, y : y + 8, x : x + 8].flip(2) if flip else whole[:, y : y + 8, x : x + 8])
        ]
        assert len(found) == 1
    many = crop_and_flip(images[:1].expand(400, 3, 8, 8), torch.Generator().manual_seed(1), pad=2)
    assert len({tuple(m.flatten().tolist()) for m in many}) == 50
    assert torch.equal(made, crop_and_flip(images, torch.Generator().manual_seed(0), pad=2))


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"), [(10, 16, 300), (400, 16, 12), (1999, 16, 3), (2000, 32, 5), (3200, 32, 3), (90_000, 32, 3)]
)
def test_few_examples_get_small_batches_and_enough_steps(rows, batch, epochs):
    settings = TrainSettings(batch=0, epochs=3, min_steps=300)
    resolved = resolve_settings(settings, rows)
    assert (resolved.batch, resolved.epochs, resolved.min_steps) == (batch, epochs, None)
    assert sum(len(epoch_batches(rows, None, batch, seed=0, epoch=e)) for e in range(epochs)) >= 300
    assert resolve_settings(resolved, 7) == resolved


def test_settings_that_say_everything_stay_as_they_are():
    settings = TrainSettings(epochs=2, batch=5)
    assert resolve_settings(settings, 10) == settings
