"""Hugging Face's Trainer, recorded by the callback: the same as written down by hand in its loss, whatever is switched on."""

import gc
import inspect
import json
import shutil
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import launch
from tiny import config, sentences, tokenizer
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset
from transformers import (
    AutoModelForMultipleChoice,
    AutoModelForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from distilcal.dynamics import load_dynamics
from distilcal.errors import InputError
from distilcal.integrations.transformers import FOLDER, PLACES, DynamicsCallback

COLUMNS = ("epochs", "confidence", "variability", "correctness", "forgotten", "aum", "logits")


@pytest.fixture(scope="module", autouse=True)
def quick():
    """Trainer collects garbage whenever it starts, which takes longer than these trainings: what is there now is left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


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


class Drawn(TorchDataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


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


class Plain(torch.nn.Module):
    """A classifier that is nobody's subclass and returns what it is told to."""

    def __init__(self, returns):
        super().__init__()
        torch.manual_seed(0)
        self.returns, self.words, self.head = returns, torch.nn.EmbeddingBag(31, 8, padding_idx=0), torch.nn.Linear(8, 2)

    def forward(self, input_ids, labels, attention_mask):
        logits = self.head(self.words(input_ids))
        return self.returns(torch.nn.functional.cross_entropy(logits, labels), logits)


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


# ---- broken off, and gone on ---------------------------------------------------------------------------------------------


class BrokenOff(Exception):
    pass


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise BrokenOff


@pytest.mark.parametrize(
    ("stop", "changes"),
    [
        (7, {"save_strategy": "epoch"}),
        (8, {"save_strategy": "steps", "save_steps": 3}),  # from 6, in the second epoch of five steps
        (12, {"save_strategy": "steps", "save_steps": 5}),  # from 10, saved before the epoch's end
        (4, {"save_strategy": "steps", "save_steps": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 4}),
        (7, {"save_strategy": "steps", "save_steps": 4, "dataloader_num_workers": 1}),
    ],
    ids=["epoch", "mid-epoch", "last-step", "accumulation", "workers"],
)
def test_a_resumed_training_gives_the_map_of_one_that_was_not(tmp_path, stop, changes):
    straight, model = DynamicsCallback(), network()
    trained(tmp_path / "straight", straight, model=model, **changes)
    broken = network()
    with pytest.raises(BrokenOff):
        trained(tmp_path / "run", DynamicsCallback(), model=broken, callbacks=[StopAt(stop)], **changes)
    resumed, goes_on = DynamicsCallback(), network()
    trained(tmp_path / "run", resumed, model=goes_on, resume=True, **changes)
    assert_same(resumed.dynamics(), straight.dynamics(), **EXACT)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), goes_on.state_dict().values(), strict=True))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A training that was broken off in the middle of its second epoch."""
    folder = tmp_path_factory.mktemp("run")
    with pytest.raises(BrokenOff):
        trained(folder, DynamicsCallback(), callbacks=[StopAt(8)], save_strategy="steps", save_steps=7)
    return folder / "checkpoint-7"


def resume(folder, checkpoint, recording, **named):
    trained(folder, recording, resume=str(checkpoint), save_strategy="steps", save_steps=7, **named)
    return recording.dynamics()


def test_the_state_is_whole_without_pickles(checkpoint):
    folder = checkpoint / FOLDER
    assert {f.stem for f in folder.iterdir()} == {*np_names(), "manifest"}
    seen = np.load(folder / "seen.npy", allow_pickle=False)
    assert seen.sum() == 16  # two batches of the second epoch
    assert np.load(folder / "epochs.npy", allow_pickle=False).sum() == 37 + 16
    assert [f.name for f in checkpoint.iterdir() if f.name.startswith(".")] == []


def np_names():
    from distilcal.dynamics import Recorder

    return Recorder(["a"], [0], ["x", "y"]).arrays


def test_a_checkpoint_may_stand_elsewhere_but_must_be_told(tmp_path, checkpoint):
    expected = resume(checkpoint.parent, checkpoint, DynamicsCallback())
    moved = tmp_path / "moved" / "checkpoint-7"
    shutil.copytree(checkpoint, moved)
    with pytest.raises(InputError, match="no training dynamics were saved.*resume_from_checkpoint"):
        resume(tmp_path / "new", moved, DynamicsCallback())
    told = resume(tmp_path / "new", moved, DynamicsCallback(resume_from_checkpoint=moved))
    assert_same(told, expected, **EXACT)
    from_here = resume(tmp_path / "new", moved, DynamicsCallback(resume_from_checkpoint=False))
    assert from_here.epochs.sum() == 111 - 37 - 16
    again = resume(tmp_path / "again", moved, DynamicsCallback(resume_from_checkpoint=moved), ignore_data_skip=True)
    # The second epoch from its start, as Trainer does it then, and three steps of the next: nobody is counted twice.
    assert (again.epochs.max(), again.epochs.sum()) == (3, 37 + 37 + 24)


def test_a_state_that_does_not_belong_to_the_training_is_refused(tmp_path, checkpoint):
    with pytest.raises(InputError, match="of other data"):
        resume(tmp_path, checkpoint, DynamicsCallback(ids=np.arange(37) + 1, resume_from_checkpoint=checkpoint))
    other = tmp_path / "checkpoint-7"
    shutil.copytree(checkpoint, other)
    state = json.loads((other / "trainer_state.json").read_text())
    state["log_history"][0]["loss"] += 0.5
    (other / "trainer_state.json").write_text(json.dumps(state))
    with pytest.raises(InputError, match="of another training"):
        resume(tmp_path, other, DynamicsCallback())
    path = other / FOLDER / "mean.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match="damaged"):
        resume(tmp_path, other, DynamicsCallback())


def test_after_an_exception_the_next_training_is_recorded_anew(tmp_path):
    model, first, second = network(), DynamicsCallback(), DynamicsCallback()
    with pytest.raises(BrokenOff):
        trained(tmp_path, first, model=model, callbacks=[StopAt(8)])
    assert first.dynamics().epochs.sum() == 37 + 24  # what was recorded is there
    read = tokenizer()([DATA[0]["text"]], return_tensors="pt")
    model.train()(**read)  # the hooks that could not be removed do nothing
    assert first.dynamics().epochs.sum() == 37 + 24
    trained(tmp_path, second, model=model)
    assert (second.dynamics().epochs == 3).all()
    assert first.dynamics().epochs.sum() == 37 + 24
    assert not model._forward_hooks
    with pytest.raises(BrokenOff):
        trained(tmp_path, first, model=model, callbacks=[StopAt(2)])
    assert first.dynamics().epochs.sum() == 16
    first.close()
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


class NoRoom(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3 and state.train_batch_size == 8:
            raise RuntimeError("CUDA out of memory.")


def test_a_training_that_starts_again_with_smaller_batches_is_recorded_from_its_start(tmp_path):
    model, recording = network(), DynamicsCallback()
    trained(tmp_path, recording, model=model, callbacks=[NoRoom()], auto_find_batch_size=True)
    assert (recording.dynamics().epochs == 3).all()
    assert not model._forward_hooks


# ---- what cannot be recorded ---------------------------------------------------------------------------------------------


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


def with_labels(labels):
    return [e | {"label": label} for e, label in zip(DATA, labels, strict=True)]


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        ({}, {"data": Stream(), "max_steps": 3}, "comes as a stream"),
        ({}, {"data": Drawn(DATA)}, "cannot be read at once.*DynamicsCallback\\(labels\\)"),
        ({"labels": [0] * 5}, {}, "labels of shape \\(5,\\) for 37"),
        ({"labels": [1 - e["label"] for e in DATA]}, {"data": Drawn(DATA)}, "in the order of train_dataset"),
        ({"classes": ["a", "b", "c"]}, {}, "3 classes were given and the model has 2"),
        ({}, {"data": with_labels([0.5] * 37), "model": network(num_labels=1)}, "not class indices"),
        ({}, {"data": with_labels([0] * 37), "model": network(num_labels=1)}, "logits of shape \\(8, 1\\)"),
        ({}, {"model": Plain(lambda loss, z: {"loss": loss, "scores": z})}, "no logits, only loss, scores"),
        ({}, {"model": Plain(lambda loss, z: (loss,))}, "no logits, a tuple without them"),
        ({}, {"named": {"data_collator": lambda items: [1, 2]}}, "collator makes a list"),
        ({"ids": ["a"] * 37}, {}, "same id"),
    ],
)
def test_what_cannot_be_recorded_is_refused(tmp_path, given, named, words):
    with pytest.raises(InputError, match=words):
        trained(tmp_path, DynamicsCallback(**given), **named)


PROGRAM = """
import json, sys
from collections import defaultdict
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path[:0] = sys.argv[2:4]
from test_transformers import DATA, BrokenOff, ByHand, DynamicsCallback, StopAt, network, trained
out = Path(sys.argv[1])
how = {"per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 3, "ddp_backend": "gloo"}
straight, resumed, model, goes_on = DynamicsCallback(), DynamicsCallback(), network(), network()


class InTime(ByHand):
    def compute_loss(self, model, inputs, **named):
        self.said = defaultdict(list)
        loss = super().compute_loss(model, inputs, **named)
        noted.append([[list(words), *logits] for words, logits in self.said.items()])
        return loss


noted = []
trainer = trained(out / "straight", straight, model=model, kind=InTime, **how)
rank, world = trainer.args.process_index, trainer.args.world_size
(out / f"noted{rank}.json").write_text(json.dumps(noted))
straight.save(out / "map")
try:
    trained(out / "run", DynamicsCallback(), callbacks=[StopAt(8)], **how)
except BrokenOff:
    trained(out / "run", resumed, model=goes_on, resume=True, **how)
same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), goes_on.state_dict().values(), strict=True))
if rank == 0:  # alone: all is brought together already
    resumed.dynamics().save(out / "resumed")
    (out / "facts.json").write_text(json.dumps({"world": world, "same": same}))
"""


@pytest.mark.slow
def test_two_processes_bring_their_rows_together(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = launch([tmp_path / "program.py", tmp_path, Path(__file__).parent, Path(__file__).parents[1]], 2)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads((tmp_path / "facts.json").read_text()) == {"world": 2, "same": True}
    noted = [json.loads((tmp_path / f"noted{rank}.json").read_text()) for rank in (0, 1)]
    assert [len(n) for n in noted] == [15, 15]  # 37 examples are 5 steps of 2 × 4, the last filled up with the first ones
    said = {tuple(e["input_ids"]): [] for e in DATA}
    for epoch in range(3):
        first = {}
        for step in range(5 * epoch, 5 * epoch + 5):
            for rank in (0, 1):
                for words, logits in noted[rank][step]:
                    first.setdefault(tuple(words), logits)
        for words, logits in first.items():
            said[words].append(logits)
    made = load_dynamics(tmp_path / "map")
    assert (made.epochs == 3).all()
    assert_same(made, table(said.values(), [e["label"] for e in DATA]), **NEAR)
    assert_same(load_dynamics(tmp_path / "resumed"), made, **EXACT)


def test_several_gpus_in_one_process_are_refused():
    with pytest.raises(InputError, match="trains on 2 GPUs.*torchrun"):
        DynamicsCallback().on_train_begin(SimpleNamespace(n_gpu=2), None, None)


def test_the_batch_carries_a_name_that_no_model_takes():
    assert PLACES not in network().forward.__code__.co_varnames
