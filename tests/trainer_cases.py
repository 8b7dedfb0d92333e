"""Trainings with Hugging Face's Trainer that take a second, and what their map must be."""

from collections import defaultdict

import numpy as np
import torch
from tiny import config, sentences, tokenizer
from torch.utils.data import Dataset as TorchDataset
from transformers import (
    AutoModelForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

COLUMNS = ("epochs", "confidence", "variability", "correctness", "forgotten", "aum", "logits")


def examples(count=37, seed=0):
    """Tokenized reviews, all different, with a column that no model takes."""
    read, (made, labels) = tokenizer(), sentences(count, seed)
    assert len(set(made)) == count
    return [{"text": t, "label": int(name == "pos"), **read(t)} for t, name in zip(made, labels, strict=True)]


DATA = examples()


def network(**changes):
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(config("bert", num_hidden_layers=2, **changes))


def settings(folder, **changes):
    usual = {"num_train_epochs": 3, "per_device_train_batch_size": 8, "learning_rate": 0.01, "save_strategy": "no"}
    usual |= {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "dataloader_pin_memory": False, "logging_steps": 2}
    return TrainingArguments(str(folder), **usual | changes)


class ByHand(Trainer):
    """Writes down what the model says, by the words of the example."""

    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        self.said = defaultdict(list)

    def compute_loss(self, model, inputs, return_outputs=False, **named):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **named)
        if model.training:
            for words, logits in zip(inputs["input_ids"].tolist(), outputs["logits"].tolist(), strict=True):
                self.said[tuple(w for w in words if w)].append(logits)
        return (loss, outputs) if return_outputs else loss


def trained(folder, recording=None, *, data=DATA, model=None, kind=Trainer, callbacks=(), resume=None, named=None, **changes):
    callbacks = [*callbacks, *([recording] if recording else [])]
    trainer = kind(
        model or network(),
        settings(folder, **changes),
        train_dataset=data,
        processing_class=tokenizer(),
        callbacks=callbacks,
        **named or {},
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def table(said, labels):
    """What the map must be, from all logits (E, K) of each example."""
    rows = defaultdict(list)
    for every, label in zip(said, labels, strict=True):
        z = np.array(every, dtype=np.float64).reshape(len(every), -1)
        p = (np.exp(z) / np.exp(z).sum(axis=1, keepdims=True))[:, label]
        right = z.argmax(axis=1) == label
        rows["epochs"].append(len(z))
        rows["confidence"].append(p.mean())
        rows["variability"].append(p.std())
        rows["correctness"].append(right.sum())
        rows["forgotten"].append((right[:-1] & ~right[1:]).sum())
        rows["aum"].append((z[:, label] - np.delete(z, label, axis=1).max(axis=1)).mean())
        rows["logits"].append(z[-1])
    return {name: np.array(values) for name, values in rows.items()}


def assert_same(found, expected, **tolerance):
    for name in COLUMNS:
        a, b = getattr(found, name), expected[name] if isinstance(expected, dict) else getattr(expected, name)
        np.testing.assert_allclose(a, b, err_msg=name, **tolerance)


NEAR = {"rtol": 1e-4, "atol": 1e-5}
EXACT = {"rtol": 0, "atol": 0}


class BrokenOff(Exception):
    pass


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise BrokenOff


class Drawn(TorchDataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Plain(torch.nn.Module):
    """A classifier that is nobody's subclass and returns what it is told to."""

    def __init__(self, returns):
        super().__init__()
        torch.manual_seed(0)
        self.returns, self.words, self.head = returns, torch.nn.EmbeddingBag(31, 8, padding_idx=0), torch.nn.Linear(8, 2)

    def forward(self, input_ids, labels, attention_mask):
        logits = self.head(self.words(input_ids))
        return self.returns(torch.nn.functional.cross_entropy(logits, labels), logits)
