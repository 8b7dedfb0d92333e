"""Networks, batches and maps with given contents, for tests of views that mix."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from distilcal.dynamics import Dynamics  # noqa: E402
from distilcal.models.network import Output  # noqa: E402
from distilcal.views import Batch, StepContext  # noqa: E402


class Told:
    """A network that says what it is told, and remembers what it was shown."""

    def __init__(self, logits=None):
        self.logits, self.shown = logits, []

    def __call__(self, inputs, mix=None):
        self.shown.append((inputs, mix))
        if self.logits is not None:
            return Output(self.logits, self.logits)
        values = next(iter(inputs.values())).flatten(1)
        return Output(values, values)


class Fixed(StepContext):
    """StepContext whose first random numbers are given: whether to change, the share, the permutation, the centre."""

    def __init__(self, rows, share=0.5, permutation=None, centre=None):
        object.__setattr__(self, "rows", np.asarray(rows))
        object.__setattr__(self, "seed", (0,))
        self.__dict__.update(share=share, permutation=permutation, centre=centre)

    def rng(self, *use):
        real, outer = np.random.default_rng([0, *use]), self

        class Given:
            random = staticmethod(real.random)
            choice = staticmethod(real.choice)

            @staticmethod
            def beta(a, b, size):
                return np.full(size, outer.share)

            @staticmethod
            def permutation(n):
                return np.asarray(outer.permutation if outer.permutation is not None else real.permutation(n))

            @staticmethod
            def integers(low, high=None, size=None):
                if outer.centre is not None:
                    return np.broadcast_to(outer.centre, size).copy()
                return real.integers(low, high, size=size)

        return Given()


def batch_of(values, labels, name="vectors", **named):
    values = torch.as_tensor(values)
    labels = torch.as_tensor(labels)
    return Batch({name: values}, labels, labels, torch.arange(len(labels)), **named)


def dynamics_of(logits, labels, aum, *, confidence=None, variability=None, features=None):
    """A map whose columns are given."""
    n = len(labels)
    zeros = np.zeros(n, dtype=np.int32)
    return Dynamics(
        ids=np.array([f"r{i:04d}" for i in range(n)]),
        labels=np.asarray(labels),
        classes=tuple(f"c{k}" for k in range(np.asarray(logits).shape[1])),
        epochs=zeros + 1,
        confidence=np.zeros(n) if confidence is None else np.asarray(confidence),
        variability=np.zeros(n) if variability is None else np.asarray(variability),
        correctness=zeros,
        forgotten=zeros,
        aum=np.asarray(aum),
        logits=np.asarray(logits),
        feature_saliency=features,
    )
