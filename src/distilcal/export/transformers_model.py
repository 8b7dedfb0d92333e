"""Models of transformers that are in memory, used as they are: to defer to one needs no copy of it on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from distilcal.data import Dataset
from distilcal.errors import InputError
from distilcal.export.student import LONGEST
from distilcal.inference import Student
from distilcal.inference.called import bare_model
from distilcal.inference.student import OnProgress
from distilcal.models.inputs import TokenInputs, run_network, usable_length
from distilcal.models.network import Output
from distilcal.pipeline.in_memory import model_tokenizer


class LogitsOnly(nn.Module):
    """A model of transformers as a network that `run_network` runs.

    Parameters
    ----------
    model : PreTrainedModel
        A model for sequence classification.
    """

    def __init__(self, model: Any):
        super().__init__()
        self.model = model
        self.train(model.training)  # `run_network` brings back this mode

    def forward(self, inputs: dict[str, Tensor]) -> Output:
        """Return the logits of a batch, in the place of the features too."""
        logits: Tensor = self.model(**inputs).logits
        return Output(logits, logits)


@dataclass(frozen=True)
class TransformersBackend:
    """Runs a model of transformers on the device where it is.

    Parameters
    ----------
    model : PreTrainedModel
        A model for sequence classification.
    tokenizer : PreTrainedTokenizerBase
        Its tokenizer.
    batch : int, default 64
        Examples per forward pass.
    """

    model: Any
    tokenizer: Any
    batch: int = 64

    def compute_logits(self, data: Dataset, on_progress: OnProgress | None = None) -> NDArray[np.float32]:
        """Return the logits (N, K) of examples."""
        batches = TokenInputs(self.tokenizer, usable_length(self.model, self.tokenizer, LONGEST)).prepare(data)
        network = LogitsOnly(self.model)
        outputs = run_network(network, batches, batch_size=self.batch, device=self.model.device, on_progress=on_progress)
        return outputs["logits"]


def wrap_transformers_model(model: Any) -> Student:
    """Return a model of transformers, or a text-classification pipeline, as a student without calibration.

    Parameters
    ----------
    model : PreTrainedModel or pipeline
        With a head for sequence classification; its tokenizer is that of the pipeline, its own attribute ``tokenizer``, or the
        one beside its weights.

    Returns
    -------
    Student
        With the classes of its ``id2label``.

    Raises
    ------
    InputError
        If it is no sequence classifier, or its tokenizer is not known.
    """
    network = bare_model(model)
    name = type(network).__name__
    if not name.endswith("ForSequenceClassification"):
        raise InputError(
            f"a {name} does not classify texts", source="defer_to", remedy="give a model for sequence classification"
        )
    labels = network.config.id2label
    classes = tuple(str(labels[index]) for index in range(len(labels)))
    return Student(TransformersBackend(network, model_tokenizer(model, "defer_to")), classes, "texts", name=name)
