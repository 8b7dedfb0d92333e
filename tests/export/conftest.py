"""The folder of a small finished run."""

import os

import pytest
from shell import command
from tiny import save_model, write_csv


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    write_csv(folder / "train.csv", 800, 0, ids=True)
    write_csv(folder / "other.csv", 80, 1, ids=True)
    save_model(folder / "encoder", head=False)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    command("distill", "--train", folder / "train.csv", "--teacher", folder / "encoder", "--ood", folder / "other.csv",
            "--out", folder / "run", "--store", folder / "store", "--epochs", "5", "--batch", "16",
            "--no-alone", "--lr", "0.01", "--accuracy", "0.7", "--max-length", "12")  # fmt: skip
    return folder / "run"
