"""Trainer interrupted and resumed: the map of a training that was not, also in two processes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import launch
from tiny import tokenizer
from trainer_cases import DATA, EXACT, NEAR, BrokenOff, StopAt, assert_same, network, table, trained
from transformers import (
    TrainerCallback,
)

from distilcal.dynamics import load_dynamics
from distilcal.errors import InputError
from distilcal.integrations.transformers import DynamicsCallback
from distilcal.integrations.transformers.callback import FOLDER


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


PROGRAM = """
import json, sys
from collections import defaultdict
from pathlib import Path
import torch
torch.set_num_threads(1)
sys.path[:0] = sys.argv[2:4]
from trainer_cases import DATA, BrokenOff, ByHand, StopAt, network, trained
from distilcal.integrations.transformers import DynamicsCallback
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
torch.distributed.destroy_process_group()  # else threads of gloo abort the process now and then while Python ends
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
