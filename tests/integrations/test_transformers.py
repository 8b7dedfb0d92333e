"""Hugging Face's Trainer, recorded by the callback: the same as written down by hand in its loss, whatever is switched on."""

import inspect

import numpy as np
import pytest
import torch
from tiny import config, tokenizer
from trainer_cases import DATA, EXACT, NEAR, ByHand, Drawn, Plain, assert_same, network, table, trained
from transformers import (
    AutoModelForMultipleChoice,
    Trainer,
)

from distilcal.dynamics import load_dynamics
from distilcal.errors import InputError
from distilcal.integrations.transformers import DynamicsCallback


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"gradient_accumulation_steps": 3},
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3, "gradient_accumulation_steps": 2},
        {"train_sampling_strategy": "group_by_length"},
        {"train_sampling_strategy": "batch_rebalance"},
        {"dataloader_drop_last": True, "num_train_epochs": 4},
        {"label_smoothing_factor": 0.1},
        {"bf16": True},
        {"gradient_checkpointing": True},
        {"max_steps": 12},
        {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},  # on the training data, which must not be recorded
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
def test_the_map_is_what_was_written_down_by_hand(tmp_path, changes):
    recording = DynamicsCallback()
    trainer = trained(tmp_path, recording, kind=ByHand, named={"eval_dataset": DATA}, **changes)
    said = [trainer.said[tuple(e["input_ids"])] for e in DATA]
    everyone = not {"dataloader_drop_last", "max_steps"} & changes.keys()
    assert {len(s) for s in said} == ({3} if everyone else {len(s) for s in said})
    assert sum(len(s) for s in said) in {111, 128, 37 * 2 + 16}
    assert_same(recording.dynamics(), table(said, [e["label"] for e in DATA]), **NEAR)


def hub(items, **features):
    import datasets

    made = datasets.Dataset.from_list(items)
    return made.cast_column("label", datasets.ClassLabel(names=["bad", "good"]))


@pytest.mark.parametrize("keep", [False, True])
def test_every_kind_of_data_gives_the_same_map(tmp_path, keep):
    items = [{k: v for k, v in e.items() if k != "text"} for e in DATA] if keep else DATA
    labels = [e["label"] for e in items]
    kinds = {"list": (items, None), "datasets": (hub(items), None), "torch": (Drawn(items), labels), "given": (items, labels)}
    found = {}
    for name, (data, given) in kinds.items():
        recording = DynamicsCallback(given)
        trained(tmp_path, recording, data=data, remove_unused_columns=not keep)
        found[name] = recording.dynamics()
        assert_same(found[name], found["list"], **EXACT)
    assert found["list"].classes == ("0", "1")
    assert found["datasets"].classes == ("bad", "good")
    assert found["list"].ids.tolist() == [str(i) for i in range(37)]


def test_names_come_from_the_model_or_are_given_and_the_map_is_saved(tmp_path):
    recording = DynamicsCallback(ids=[f"r{i}" for i in range(37)])
    trained(tmp_path / "a", recording, model=network(id2label={0: "neg", 1: "pos"}, label2id={"neg": 0, "pos": 1}))
    recording.save(tmp_path / "map")
    back = load_dynamics(tmp_path / "map")
    assert back.classes == ("neg", "pos")
    assert back.ids.tolist() == [f"r{i}" for i in range(37)]
    assert_same(back, recording.dynamics(), **EXACT)
    named = DynamicsCallback(classes=["x", "y"])
    trained(tmp_path / "a", named, num_train_epochs=1)
    assert named.dynamics().classes == ("x", "y")


@pytest.mark.parametrize("changes", [{}, {"gradient_accumulation_steps": 2, "dataloader_num_workers": 1}])
def test_training_comes_out_the_same_to_the_bit(tmp_path, changes):
    found = []
    for recording in (None, DynamicsCallback()):
        model = network()  # with dropout
        signature = inspect.signature(model.forward)
        trained(tmp_path, recording, model=model, **changes)
        assert not model._forward_hooks
        assert not model._forward_pre_hooks
        assert inspect.signature(model.forward) == signature
        found.append({k: v.numpy().tobytes() for k, v in model.state_dict().items()} | dict.fromkeys(vars(model)))
    assert found[0] == found[1]


def test_logits_are_those_of_train_mode(tmp_path):
    model = network(hidden_dropout_prob=0.5)
    recording = DynamicsCallback()
    trained(tmp_path, recording, model=model, learning_rate=0.0, num_train_epochs=6)
    assert (recording.dynamics().variability > 1e-4).all()  # the weights stand still: what varies is dropout
    still = DynamicsCallback()
    trained(tmp_path, still, model=network(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), learning_rate=0.0)
    assert still.dynamics().variability.max() < 1e-6


# ---- other models and losses ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "returns",
    [
        lambda loss, z: {"loss": loss, "logits": z},
        lambda loss, z: (loss, z),
        lambda loss, z: (loss, z, torch.zeros(len(z), 5)),
        lambda loss, z: (loss, [], z),
        lambda loss, z: type("Outputs", (), {"logits": z, "__getitem__": lambda self, i: (loss, z)[i]})(),
    ],
)
def test_logits_are_found_in_whatever_a_model_returns(tmp_path, returns):
    expected, found = DynamicsCallback(), DynamicsCallback()
    trained(tmp_path, expected, model=Plain(lambda loss, z: {"loss": loss, "logits": z}))
    trained(tmp_path, found, model=Plain(returns))
    assert_same(found.dynamics(), expected.dynamics(), **EXACT)


def test_models_that_return_tuples(tmp_path):
    found = []
    for return_dict in (True, False):
        recording = DynamicsCallback()
        trained(tmp_path, recording, model=network(return_dict=return_dict))
        found.append(recording.dynamics())
    assert_same(found[1], found[0], **EXACT)


def test_multiple_choice(tmp_path):
    from transformers import DataCollatorForMultipleChoice

    torch.manual_seed(0)
    model = AutoModelForMultipleChoice.from_config(config("bert", num_hidden_layers=1))
    read, texts = tokenizer(), [e["text"] for e in DATA]
    rng = np.random.default_rng(0)
    data = [
        {k: [v, *(v[:2] for _ in range(2))] for k, v in read(text).items()} | {"label": int(rng.integers(3))} for text in texts
    ]
    recording = DynamicsCallback()
    trained(tmp_path, recording, data=data, model=model, named={"data_collator": DataCollatorForMultipleChoice(read)})
    assert recording.dynamics().logits.shape == (37, 3)
    assert recording.dynamics().classes == ("0", "1", "2")
    assert (recording.dynamics().epochs == 3).all()


class Twice(ByHand):
    """Forwards without gradient, in eval mode and of another kind, logits changed in place: the first real one counts."""

    def compute_loss(self, model, inputs, return_outputs=False, **named):
        labels = inputs.pop("labels")
        with torch.no_grad():
            model(**inputs)
        model.eval()
        model(**inputs)
        model.train()
        outputs = model(**inputs)
        for words, logits in zip(inputs["input_ids"].tolist(), outputs["logits"].tolist(), strict=True):
            self.said[tuple(w for w in words if w)].append(logits)
        again = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits + model(**inputs).logits
        outputs["logits"].mul_(2)
        return torch.nn.functional.cross_entropy(outputs["logits"] + again, labels)


def test_a_loss_of_ones_own(tmp_path):
    recording = DynamicsCallback()
    trainer = trained(tmp_path, recording, kind=Twice)
    said = [trainer.said[tuple(e["input_ids"])] for e in DATA]
    assert_same(recording.dynamics(), table(said, [e["label"] for e in DATA]), **NEAR)

    def loss(outputs, labels, num_items_in_batch=None):
        return torch.nn.functional.cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch

    by_function = DynamicsCallback()
    trained(tmp_path, by_function, named={"compute_loss_func": loss})
    assert (by_function.dynamics().epochs == 3).all()


class Choosy(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **named):
        wanted = {k: inputs[k] for k in ("input_ids", "attention_mask", "labels")}
        return super().compute_loss(model, wanted, return_outputs, **named)


@pytest.mark.parametrize("changes", [{}, {"gradient_accumulation_steps": 2}])
def test_places_that_do_not_reach_the_model_are_an_error_in_the_first_step(tmp_path, changes):
    model, recording = network(), DynamicsCallback()
    before = [v.clone() for v in model.state_dict().values()]
    with pytest.raises(InputError, match="did not reach the model.*model\\(\\*\\*inputs\\)"):
        trained(tmp_path, recording, model=model, kind=Choosy, **changes)
    assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    with pytest.raises(InputError, match="no training was recorded"):
        recording.dynamics()
