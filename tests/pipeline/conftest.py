"""The folder of a small finished run, with the data and models it was made from."""

import os

import pytest
from run_cases import FAST
from shell import command
from tiny import save_model, write_csv


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_csv(folder / "train.csv", 300, 0, ids=True)
    write_csv(folder / "other.csv", 80, 1, ids=True)
    save_model(folder / "encoder", head=False)
    save_model(folder / "trained", labels=("pos", "neg"))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    command("distill", "--train", folder / "train.csv", "--teacher", folder / "encoder", "--ood", folder / "other.csv", *FAST,
            "--out", folder / "run", "--store", folder / "store")  # fmt: skip
    return folder
