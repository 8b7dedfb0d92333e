"""What is wrong with a model is named: not the hub where a folder is meant, not the model where the disk is full."""

import errno
import json

import pytest
import transformers
from safetensors.torch import load_file, save_file
from tiny import save_model

from distilcal.errors import InputError
from distilcal.models.pretrained import load_config, load_text_encoder, load_text_model, resolve_model


@pytest.fixture
def model(tmp_path):
    return save_model(tmp_path / "models" / "my-bert", labels=("neg", "pos"))


@pytest.mark.parametrize("name", ["google-bert/bert-base-uncased", "gpt2", "distilbert-base-uncased", "a.b/c_d-e"])
def test_names_of_the_hub_stay_as_they_are(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_model(name) == name


@pytest.mark.parametrize(
    "name",
    ["models/my-brt", "./my-bert", "../x", "/nowhere/x", "~/x", "a/b/c", "C:\\models\\x", "my bert", "bért", "x" * 97, "a--b",
     "a..b", "", "a\nb", "-x"],
)  # fmt: skip
def test_names_that_cannot_be_on_the_hub_are_not_looked_up(model, name, monkeypatch):
    monkeypatch.chdir(model.parent.parent)
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", None)
    with pytest.raises(InputError, match="there is no such folder|holds no config.json"):
        load_config(name)


def test_a_similar_folder_is_named(model, monkeypatch):
    monkeypatch.chdir(model.parent.parent)
    with pytest.raises(InputError, match="models/my-brt: there is no such folder; did you mean models/my-bert"):
        resolve_model("models/my-brt")


def test_a_file_is_called_a_file(model):
    with pytest.raises(InputError, match="this is a file"):
        resolve_model(str(model / "config.json"))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EFBIG])
def test_a_full_disk_is_not_the_models_fault(model, monkeypatch, code):
    def fails(*_, **__):
        raise OSError(code, "No room at all")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", fails)
    with pytest.raises(InputError, match="cannot be read or written: No room at all; check the room on the disk"):
        load_config(str(model))


def test_labels_that_the_weights_do_not_have(model):
    config = json.loads((model / "config.json").read_text())
    names = {"0": "neg", "1": "neutral", "2": "pos"}
    (model / "config.json").write_text(
        json.dumps({**config, "id2label": names, "label2id": {n: int(i) for i, n in names.items()}})
    )
    with pytest.raises(InputError) as error:
        load_text_model(str(model), ["neg", "neutral", "pos"], head="keep")
    assert "other shapes than its config.json describes, such as another number of labels" in str(error.value)
    assert "above report" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(model, value):
    path = model / "model.safetensors"
    weights = load_file(path)
    name = next(name for name in weights if name.endswith("embeddings.LayerNorm.weight"))
    weights[name][0] = value
    save_file(weights, path, {"format": "pt"})
    with pytest.raises(InputError, match="LayerNorm.weight holds NaN or infinity; get the model again"):
        load_text_model(str(model), ["neg", "pos"])
    with pytest.raises(InputError, match="LayerNorm.weight holds NaN or infinity; get the model again"):
        load_text_encoder(str(model))
