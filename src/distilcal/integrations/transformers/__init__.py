"""distilcal inside Hugging Face's Trainer.

`DistillationTrainer` is a Trainer with a teacher and our losses, `loss_func` gives our losses to a plain Trainer, and
`DynamicsCallback` records training dynamics with either.
"""

from distilcal.integrations.transformers.callback import DynamicsCallback
from distilcal.integrations.transformers.loss_function import loss_func
from distilcal.integrations.transformers.trainer import DistillationTrainer

__all__ = ["DistillationTrainer", "DynamicsCallback", "loss_func"]
