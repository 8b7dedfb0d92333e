"""What the callback cannot record is refused with a remedy."""

from types import SimpleNamespace

import pytest
from torch.utils.data import IterableDataset
from trainer_cases import DATA, Drawn, Plain, network, trained

from distilcal.errors import InputError
from distilcal.integrations.transformers import DynamicsCallback
from distilcal.integrations.transformers.callback import ROWS


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def with_labels(labels):
    return [e | {"label": label} for e, label in zip(DATA, labels, strict=True)]


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        ({}, {"data": Stream(), "max_steps": 3}, "is a stream"),
        ({}, {"data": Drawn(DATA)}, "cannot be read at once.*DynamicsCallback\\(labels\\)"),
        ({"labels": [0] * 5}, {}, "labels of shape \\(5,\\) for 37"),
        ({"labels": [1 - e["label"] for e in DATA]}, {"data": Drawn(DATA)}, "in the order of train_dataset"),
        ({"classes": ["a", "b", "c"]}, {}, "got 3 classes, but the model has 2"),
        ({}, {"data": with_labels([0.5] * 37), "model": network(num_labels=1)}, "not class indices"),
        ({}, {"data": with_labels([0] * 37), "model": network(num_labels=1)}, "logits of shape \\(8, 1\\)"),
        ({}, {"model": Plain(lambda loss, z: {"loss": loss, "scores": z})}, "no logits, only loss, scores"),
        ({}, {"model": Plain(lambda loss, z: (loss,))}, "no logits, a tuple without them"),
        ({}, {"named": {"data_collator": lambda items: [1, 2]}}, "collator returns a list"),
        ({"ids": ["a"] * 37}, {}, "same id"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, given, named, words):
    with pytest.raises(InputError, match=words):
        trained(tmp_path, DynamicsCallback(**given), **named)


def test_several_gpus_in_one_process_are_refused():
    with pytest.raises(InputError, match="trains on 2 GPUs.*torchrun"):
        DynamicsCallback().on_train_begin(SimpleNamespace(n_gpu=2), None, None)


def test_the_batch_carries_a_name_that_no_model_takes():
    assert ROWS not in network().forward.__code__.co_varnames
