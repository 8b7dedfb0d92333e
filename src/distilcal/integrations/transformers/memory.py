"""The memories of losses while a Trainer trains: epochs, gradients, checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from distilcal.errors import InputError, StoreError
from distilcal.training.checkpoint import load_tensors, save_tensors

LOSS_STATE = "distilcal_losses.safetensors"  # in each checkpoint, if a loss has a memory


class LossMemory(TrainerCallback):
    """Lets losses with a memory start epochs, and saves them with each checkpoint.

    Parameters
    ----------
    trainer : DistillationTrainer
        Whose losses they are: it has an ``objective`` and ``resume_from``.
    """

    def __init__(self, trainer: Any):
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the memories if a training is resumed."""
        losses = self.trainer.objective.loss_modules
        for loss in losses:
            loss.to(args.device).train()
        if losses and state.global_step:
            self._restore(args, state, losses)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start an epoch."""
        for loss in self.trainer.objective.loss_modules:
            if hasattr(loss, "start_epoch"):
                loss.start_epoch(int(state.epoch or 0), state.num_train_epochs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Clear the gradients of the losses' parameters: Trainer does it for the model only."""
        for loss in self.trainer.objective.loss_modules:
            loss.zero_grad()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save the memories beside a checkpoint."""
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        losses = self.trainer.objective.loss_modules
        if losses and args.should_save and folder.is_dir():  # a search over settings saves elsewhere
            tensors = {f"{i}/{name}": value for i, loss in enumerate(losses) for name, value in loss.state_dict().items()}
            save_tensors(folder / LOSS_STATE, tensors, {"key": self.trainer.objective.key})

    def _restore(self, args: Any, state: Any, losses: Sequence[nn.Module]) -> None:
        folder = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if isinstance(self.trainer.resume_from, str | Path):
            folder = Path(self.trainer.resume_from)
        try:
            saved = load_tensors(folder / LOSS_STATE, self.trainer.objective.key)
        except StoreError:
            saved = None
        if saved is None:
            names = ", ".join(term.name for term in self.trainer.objective.terms if isinstance(term.loss, nn.Module))
            raise InputError(
                f"the memory of {names} is not in this checkpoint, damaged, or of other terms or data",
                source=str(folder),
                remedy="resume from an earlier checkpoint, with the same terms and data",
            )
        for i, loss in enumerate(losses):
            prefix = f"{i}/"
            loss.load_state_dict({k.removeprefix(prefix): v for k, v in saved[0].items() if k.startswith(prefix)})
