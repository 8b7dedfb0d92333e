"""How other libraries distil: functions of a ``Lesson`` that train its student, listed in ``PEERS``.

To compare one more, write such a function and enter it. Each runs the teacher as the library does, minimises the same sum
KL(teacher ‖ student), T = 1, with PyTorch's fused AdamW, and neither clips, evaluates, logs nor saves.
"""

from __future__ import annotations

import importlib.machinery
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div
from torch.utils.data import DataLoader, RandomSampler

Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Lesson:
    """What a library is given: two networks, data as they lie on disk, and for how long."""

    student: nn.Module  # forward(**inputs) has .logits; ignores labels
    teacher: nn.Module
    read: Callable[[], list[dict[str, Any]]]  # one dictionary per example, texts tokenised
    collate: Callable[[list[Any]], Inputs]  # padded to the longest of the batch, with labels
    batch: int
    epochs: int
    rate: float


def hugging_face(lesson: Lesson, *, by_length: bool = False) -> None:
    """``transformers.Trainer`` whose loss asks the teacher about every batch.

    ``by_length`` takes texts sorted by length. Its own ``group_by_length`` sorts within N / (4 · batch) batches, at most 50:
    of as few texts as here it would sort nothing.
    """
    from transformers import Trainer, TrainingArguments

    class Distilling(Trainer):
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            with torch.no_grad():
                said = lesson.teacher(**inputs).logits
            logits = model(**inputs).logits
            return kl_div(logits.log_softmax(1), said.log_softmax(1), reduction="batchmean", log_target=True)

    with tempfile.TemporaryDirectory() as folder:
        how = TrainingArguments(
            folder,
            num_train_epochs=lesson.epochs,
            per_device_train_batch_size=lesson.batch,
            learning_rate=lesson.rate,
            weight_decay=0.01,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            optim="adamw_torch_fused",
            train_sampling_strategy="sequential" if by_length else "random",
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            remove_unused_columns=False,
            use_cpu=True,
        )
        data = lesson.read()
        if by_length:
            data.sort(key=lambda example: len(example["input_ids"]))
        lesson.teacher.eval()
        Distilling(lesson.student, how, data_collator=lesson.collate, train_dataset=data).train()


def hugging_face_by_length(lesson: Lesson) -> None:
    hugging_face(lesson, by_length=True)


def textbrewer(lesson: Lesson, *, cached: bool = False) -> None:
    """``BasicDistiller``; ``cached`` keeps batches and the teacher's logits of one pass: later epochs shuffle these batches."""
    from textbrewer import BasicDistiller, DistillationConfig, TrainingConfig

    def logits(batch: Inputs, said: Any) -> dict[str, Any]:
        return {"logits": said.logits}

    loader = DataLoader(lesson.read(), lesson.batch, shuffle=True, collate_fn=lesson.collate)
    with tempfile.TemporaryDirectory() as folder:
        train = TrainingConfig(output_dir=folder, device="cpu", ckpt_frequency=0)
        distil = DistillationConfig(temperature=1, is_caching_logits=cached)
        distiller = BasicDistiller(train, distil, lesson.teacher, lesson.student, logits, logits)
        optimizer = torch.optim.AdamW(lesson.student.parameters(), lesson.rate, fused=True)
        with distiller:
            distiller.train(optimizer, loader, num_epochs=lesson.epochs)


def textbrewer_cached(lesson: Lesson) -> None:
    textbrewer(lesson, cached=True)


def torchdistill(lesson: Lesson) -> None:
    """``DistillationBox`` in the loop of its examples."""
    with stand_in_torchvision():
        from torchdistill.core.distillation import DistillationBox
        from torchdistill.core.interfaces.registry import register_forward_proc_func
        from torchdistill.datasets.registry import register_collate_func

    register_collate_func(key="bench")(lesson.collate)
    register_forward_proc_func(key="bench")(lambda model, inputs, *_: model(**inputs).logits)
    where = {"student_module_path": ".", "student_module_io": "output"}
    where |= {"teacher_module_path": ".", "teacher_module_io": "output"}
    kd = {"key": "KDLoss", "kwargs": {**where, "temperature": 1.0, "alpha": 0.0}}
    config = {
        "num_epochs": lesson.epochs,
        "train_data_loader": {
            "dataset_id": "train",
            "requires_supp": False,
            "sampler": {"class_or_func": RandomSampler},
            "collate_fn": "bench",
            "kwargs": {"batch_size": lesson.batch},
        },
        "teacher": {"forward_proc": "bench", "requires_grad": False},
        "student": {"forward_proc": "bench"},
        "optimizer": {"key": "AdamW", "kwargs": {"lr": lesson.rate, "fused": True}},
        "criterion": {
            "key": "WeightedSumLoss",
            "kwargs": {"sub_terms": {"kd": {"criterion": kd, "weight": 1.0}}},
            "func2extract_model_loss": "extract_model_loss_dict",
        },
    }
    data, cpu = {"train": lesson.read()}, torch.device("cpu")
    lesson.teacher.eval()  # the box leaves it as it is
    box = DistillationBox(lesson.teacher, lesson.student, data, config, cpu, [], False, 1.0)
    for epoch in range(lesson.epochs):
        box.pre_epoch_process(epoch=epoch)
        for inputs in box.train_data_loader:
            box.pre_forward_process()
            box.post_forward_process(box.forward_process(inputs, inputs.pop("labels"), None))
        box.post_epoch_process()


@contextmanager
def stand_in_torchvision() -> Iterator[None]:
    """Lets torchdistill be imported without torchvision, whose data sets and models it only lists; gone again afterwards."""
    made = {}
    for inside in ("", ".datasets", ".models", ".models.densenet", ".models.resnet"):
        name = f"torchvision{inside}"
        made[name] = types.ModuleType(name)
        made[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
    made["torchvision"].models = made["torchvision.models"]  # type: ignore[attr-defined]
    for taken in ("_DenseBlock", "_Transition"):
        setattr(made["torchvision.models.densenet"], taken, nn.Module)
    for taken in ("BasicBlock", "conv1x1"):
        setattr(made["torchvision.models.resnet"], taken, nn.Module)
    added = {name: module for name, module in made.items() if name not in sys.modules}
    sys.modules.update(added)
    try:
        yield
    finally:
        for name in added:
            del sys.modules[name]


PEERS: dict[str, Callable[[Lesson], None]] = {
    "Hugging Face Trainer": hugging_face,
    "Hugging Face Trainer, texts by length": hugging_face_by_length,
    "TextBrewer": textbrewer,
    "TextBrewer, is_caching_logits": textbrewer_cached,
    "torchdistill": torchdistill,
}
NEED_TOKENS = ("Hugging Face Trainer, texts by length",)
OPTIONS = ("Hugging Face Trainer, texts by length", "TextBrewer, is_caching_logits")  # off by default: shown, not judged
