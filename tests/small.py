"""Small data, students and teachers for tests of the training loop: they train in a fraction of a second."""

import numpy as np
import torch

from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, Images, Vectors
from distilcal.models import build_classifier
from distilcal.predictions import Predictions
from distilcal.training import Features
from distilcal.views import build_term


def vectors(n=90, k=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    weights = np.random.default_rng(9).normal(size=(6, k))
    return Dataset(Vectors(x), (2 * x @ weights + rng.gumbel(size=(n, k))).argmax(axis=1), tuple("abcde"[:k]))


TRAIN, DEV = vectors(), vectors(40, seed=1)
SMALL = ModelSettings(name="mlp", hidden=(7,))


def student(seed=0, settings=SMALL, data=TRAIN):
    return build_classifier(settings, data, seed=seed)


def known(train=TRAIN):
    return {
        "n_data": len(train),
        "classes": len(train.classes),
        "labels": torch.from_numpy(train.labels),
        "features": 7,
        "teacher_features": 4,
    }


def teacher_predictions(data=TRAIN, seed=5):
    logits = np.random.default_rng(seed).normal(size=(len(data), len(data.classes))).astype(np.float32) * 2
    return Predictions(logits, data.labels, ids=data.ids, classes=data.classes, name="teacher")


def teacher_features(data=TRAIN, seed=6):
    return Features(data.ids, np.random.default_rng(seed).normal(size=(len(data), 4)).astype(np.float32))


def teacher():
    """What fit takes of a teacher: predictions and features of TRAIN."""
    return {"teacher": teacher_predictions(), "teacher_features": teacher_features()}


def term(name, weight=1.0, **settings):
    torch.manual_seed(0)
    return build_term(name, weight, settings={**({"negatives": 20} if name == "crd" else {}), **settings}, context=known())


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.network.state_dict().values()])


def pictures(n=24, seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(Images(rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)), rng.integers(0, 2, n), ("a", "b"))


class Interrupted(Exception):
    pass
