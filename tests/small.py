"""Small data, students and teachers for tests of the training loop: they train in a fraction of a second."""

import numpy as np
import torch

from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, Images, Vectors
from distilcal.models import make_classifier
from distilcal.views import make_term


def vectors(n=90, k=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    weights = np.random.default_rng(9).normal(size=(6, k))
    return Dataset(Vectors(x), (2 * x @ weights + rng.gumbel(size=(n, k))).argmax(axis=1), tuple("abcde"[:k]))


TRAIN, DEV = vectors(), vectors(40, seed=1)
SMALL = ModelSettings(name="mlp", hidden=(7,))


def student(seed=0, settings=SMALL, data=TRAIN):
    return make_classifier(settings, data, seed=seed)


def known(train=TRAIN):
    return {
        "n_data": len(train),
        "classes": len(train.classes),
        "labels": torch.from_numpy(train.labels),
        "features": 7,
        "teacher_features": 4,
    }


def teacher(n=90, k=3, seed=5):
    rng = np.random.default_rng(seed)
    return {"logits": rng.normal(size=(n, k)).astype(np.float32) * 2, "features": rng.normal(size=(n, 4)).astype(np.float32)}


def term(name, weight=1.0, **settings):
    torch.manual_seed(0)
    return make_term(name, weight, settings={**({"negatives": 20} if name == "crd" else {}), **settings}, known=known())


def weights(made):
    return torch.cat([p.detach().flatten() for p in made.network.state_dict().values()])


def pictures(n=24, seed=0):
    rng = np.random.default_rng(seed)
    return Dataset(Images(rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8)), rng.integers(0, 2, n), ("a", "b"))


class Interrupted(Exception):
    pass
