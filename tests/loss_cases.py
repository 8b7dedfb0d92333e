"""Numbers and leaves in double precision, for tests of losses."""

import torch

F = torch.float64


def leaf(values, dtype=F):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def number(value):
    return float(value.detach())
