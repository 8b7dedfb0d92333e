"""Distillation with Hugging Face's Trainer that takes a second, and the same with our own loop."""

import copy

import numpy as np
import torch
from tiny import config, reviews, save_model, sentences, tokenizer
from trainer_cases import settings
from transformers import AutoModelForSequenceClassification

import distilcal.training.loop
from distilcal.config.schema import ModelSettings, TrainSettings
from distilcal.integrations.transformers import DistillationTrainer
from distilcal.models import build_classifier
from distilcal.predictions import Predictions
from distilcal.training import Features, fit
from distilcal.training.schedule import epoch_batches
from distilcal.views import build_term

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
NAMES = {"id2label": {0: "neg", 1: "pos"}, "label2id": {"neg": 0, "pos": 1}}


def student(seed=0, **changes):
    torch.manual_seed(seed)
    return AutoModelForSequenceClassification.from_config(
        config("bert", num_hidden_layers=1, **{**NO_DROPOUT, **NAMES, **changes})
    )


def examples(count=32, seed=0):
    texts, labels = sentences(count, seed)
    read = tokenizer()
    return [{"id": f"r{i}", "label": int(labels[i] == "pos"), **read(texts[i])} for i in range(count)]


DATA = examples()
LOGITS = np.random.default_rng(1).normal(size=(32, 2)).astype(np.float32)
TEACHER = Predictions(LOGITS, [0] * 32, ids=[f"r{i}" for i in range(32)], classes=["neg", "pos"])


class Recorded(DistillationTrainer):
    """Keeps the loss of each part of a step."""

    def __init__(self, *args, **kwargs):
        self.losses = []
        super().__init__(*args, **kwargs)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            self.losses.append(float(loss.detach()))
        return (loss, outputs) if return_outputs else loss


def train(folder, *, model=None, data=DATA, named=None, resume=None, kind=Recorded, **changes):
    changes = {"num_train_epochs": 1, "train_sampling_strategy": "sequential", **changes}
    named = {"teacher": TEACHER, **(named or {})} if issubclass(kind, DistillationTrainer) else named
    trainer = kind(
        model or student(), settings(folder, **changes), train_dataset=data, processing_class=tokenizer(), **named or {}
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weights(trainer):
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def assert_same_weights(found, expected, atol=1e-6):
    for name, value in expected.items():
        if name.endswith("key.bias"):  # attention does not depend on it: Adam makes steps of its rounding errors
            continue
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


# ---- the same training twice -------------------------------------------------------------------------------------------


class OwnOrder:
    """Samples in the order of our own loop, a new one each epoch."""

    def __init__(self, lengths):
        self.lengths, self.epoch = lengths, -1

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        self.epoch += 1
        return iter(np.concatenate(epoch_batches(len(self.lengths), self.lengths, 8, seed=3, epoch=self.epoch)).tolist())


def train_both(folder, monkeypatch, terms, *, epochs=2, clip=1.0):
    """Train with our own loop and with DistillationTrainer; return the losses of their steps and their weights."""
    data = reviews(48, ids=np.array([f"r{i}" for i in range(48)]))
    save_model(folder / "model", labels=("neg", "pos"), num_hidden_layers=1, **NO_DROPOUT)
    classifier = build_classifier(ModelSettings(name=str(folder / "model"), head="keep"), data)
    model = copy.deepcopy(classifier.network.model)
    rng = np.random.default_rng(2)
    teacher = Predictions(rng.normal(size=(48, 2)), data.labels[::-1], ids=data.ids[::-1], classes=data.classes)
    features = Features(data.ids, rng.normal(size=(48, 5)).astype(np.float32))

    # As Trainer does, our loop computes all tokens of the last layer: rounding of other sizes would grow with each step.
    monkeypatch.setattr("distilcal.models.text.AFTER_ATTENTION", {})
    own_losses = []
    add_gradient = distilcal.training.loop.add_gradient

    def record(objective, *args):
        losses = add_gradient(objective, *args)
        own_losses.append(sum(t.weight * float(v) for t, v in zip(objective.terms, losses.values, strict=True)))
        return losses

    context = {"n_data": 48, "classes": 2, "labels": torch.tensor(data.labels), "features": 16, "teacher_features": 5}
    torch.manual_seed(42)  # as TrainingArguments.seed
    built = []
    for name, value in terms.items():
        options = dict(value) if isinstance(value, dict) else {"weight": value}
        built.append(build_term(name, options.pop("weight", 1.0), settings=options, context=context))
    train_settings = TrainSettings(epochs=epochs, batch=8, lr=0.01, choose="last", precision="float32", clip=clip)
    with monkeypatch.context() as patch:
        patch.setattr(distilcal.training.loop, "add_gradient", record)
        fit(classifier, data, data, built, train_settings, teacher=teacher, teacher_features=features, seed=3)

    encoded = classifier.inputs.tokenizer(sentences(48, 0)[0])
    rows = [{"id": str(data.ids[i]), "label": int(data.labels[i])} for i in range(48)]
    rows = [row | {name: value[i] for name, value in encoded.items()} for i, row in enumerate(rows)]
    lengths = classifier.inputs.prepare(data).lengths

    class InOwnOrder(Recorded):
        def _get_train_sampler(self, dataset=None):
            return OwnOrder(lengths)

    named = {"teacher": teacher, "teacher_features": features, "terms": terms, "eval_dataset": rows}
    changes = {"num_train_epochs": epochs, "weight_decay": 0.01, "max_grad_norm": clip, "eval_strategy": "epoch"}
    trainer = train(folder / "trainer", model=model, data=rows, kind=InOwnOrder, named=named, **changes)
    return own_losses, trainer.losses, classifier.network.model.state_dict(), weights(trainer)
