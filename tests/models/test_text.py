"""Text models of every architecture through one door: entered by their embeddings, read before their last layer."""

import copy
import json

import numpy as np
import pytest
import torch
from tiny import ARCHITECTURES, config, reviews, save_model, tokenizer

from distilcal.config.schema import ModelSettings
from distilcal.data import Dataset, choices, texts
from distilcal.errors import InputError
from distilcal.models import (
    build_classifier,
    derive_classifier,
    fold_temperature,
    load_classifier,
    run_network,
    save_classifier,
)
from distilcal.models.network import Mix
from distilcal.models.pretrained import load_text_model, resolve_model
from distilcal.models.text import AFTER_ATTENTION, first_token_only


def classifier(folder, kind="bert", data=None, **settings):
    save_model(folder, kind, head=False)
    return build_classifier(ModelSettings(name=str(folder), **settings), data or reviews())


def said(made, data):
    return run_network(made.network, made.inputs.prepare(data), ("logits", "features"))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_embed_encode_head_is_the_whole(tmp_path, kind):
    made = classifier(tmp_path / kind, kind)
    network = made.network.eval()
    inputs = made.inputs.prepare(reviews()).batch(np.array([0, 3, 5]))
    with torch.no_grad():
        logits, features = network(inputs)
        own = network.model(**inputs).logits
        again = network.encode(network.embed(inputs), inputs)
    torch.testing.assert_close(logits, own)
    torch.testing.assert_close(again, features)
    torch.testing.assert_close(network.head(features), logits)
    assert features.shape == (3, 16)
    assert logits.shape == (3, 2)


@pytest.mark.parametrize("kind", sorted(AFTER_ATTENTION))
def test_only_the_first_token_goes_through_the_end_of_the_last_layer(tmp_path, kind, monkeypatch):
    made = classifier(tmp_path / kind, kind)
    network = made.network.eval()
    inputs = made.inputs.prepare(reviews()).batch(np.array([0, 3, 5]))
    lengths = []
    linear = [module for module in network.layers[-1].modules() if isinstance(module, torch.nn.Linear)]
    watched = max(linear, key=lambda module: module.out_features)  # the first of the two that are four times as wide
    watched.register_forward_hook(lambda module, args, output: lengths.append(args[0].shape[1]))
    weight, partner = torch.tensor([0.3, 0.8, 1.0]), torch.tensor([1, 2, 0])

    def outputs():
        with torch.no_grad():
            mixed = [network(inputs, Mix(weight, layer, partner=partner)) for layer in range(1, len(network.layers) + 1)]
            return [network(inputs), *mixed]

    short = outputs()
    assert set(lengths) == {1}
    monkeypatch.setattr("distilcal.models.text.AFTER_ATTENTION", {})
    for (logits, features), whole in zip(short, outputs(), strict=True):
        torch.testing.assert_close(logits, whole.logits)
        torch.testing.assert_close(features, whole.features)
    assert lengths[-1] == inputs["input_ids"].shape[1]


def test_a_model_is_left_as_it_was_after_an_error(tmp_path):
    model = classifier(tmp_path).network.model
    with pytest.raises(ZeroDivisionError), first_token_only(model):
        raise ZeroDivisionError
    assert model.base_model(torch.tensor([[2, 5, 6, 3]])).last_hidden_state.shape == (1, 4, 16)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_what_a_text_gets_does_not_depend_on_its_neighbours(tmp_path, kind):
    made = classifier(tmp_path / kind, kind)
    data = reviews(20)
    together = said(made, data)["logits"]
    alone = np.concatenate([said(made, data.select([i]))["logits"] for i in range(20)])
    np.testing.assert_allclose(together, alone, atol=2e-6)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_dropped_layers_leave_the_chosen_ones(tmp_path, kind):
    whole = classifier(tmp_path / "whole", kind)
    small = build_classifier(ModelSettings(name=str(tmp_path / "whole"), layers=(0, 2)), reviews())
    assert small.network.model.config.num_hidden_layers == 2
    assert small.parameters < whole.parameters
    by_hand = copy.deepcopy(whole.network)
    for module in by_hand.model.modules():
        for name, child in module.named_children():
            if isinstance(child, torch.nn.ModuleList) and len(child) == 4:
                setattr(module, name, torch.nn.ModuleList([child[0], child[2]]))
    by_hand.model.config.num_hidden_layers = 2
    state, wanted = small.network.state_dict(), by_hand.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[k], wanted[k]) for k in state if "classifier" not in k and "pooler" not in k)
    save_classifier(small, tmp_path / "small")
    again = load_classifier(tmp_path / "small")
    np.testing.assert_array_equal(said(again, reviews())["logits"], said(small, reviews())["logits"])


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_saved_and_loaded_is_the_same_and_transformers_reads_it(tmp_path, kind):
    from transformers import AutoModelForSequenceClassification

    made = classifier(tmp_path / "m", kind)
    save_classifier(made, tmp_path / "saved")
    again = load_classifier(tmp_path / "saved")
    assert again.fingerprint == made.fingerprint
    assert again.classes == ("neg", "pos")
    assert not again.new_head
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    assert plain.config.id2label == {0: "neg", 1: "pos"}
    inputs = made.inputs.prepare(reviews()).batch(np.array([1, 2]))
    with torch.no_grad():
        torch.testing.assert_close(plain(**inputs).logits, made.network.eval()(inputs).logits)


def test_the_same_seed_makes_the_same_head_and_another_another(tmp_path):
    save_model(tmp_path, head=False)
    heads = [build_classifier(ModelSettings(name=str(tmp_path)), reviews(), seed=s).network.output.weight for s in (0, 0, 1)]
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])


def test_a_trained_head_is_matched_by_the_names_of_its_classes(tmp_path):
    save_model(tmp_path / "ours", labels=("neg", "pos"))
    save_model(tmp_path / "theirs", labels=("pos", "neg"))
    straight = build_classifier(ModelSettings(name=str(tmp_path / "ours"), head="keep"), reviews())
    swapped = build_classifier(ModelSettings(name=str(tmp_path / "theirs"), head="keep"), reviews())
    assert not straight.new_head
    np.testing.assert_allclose(said(swapped, reviews())["logits"], said(straight, reviews())["logits"][:, ::-1], atol=1e-6)


@pytest.mark.parametrize("head", ["auto", "keep"])
def test_other_classes_are_refused_with_the_remedy(tmp_path, head):
    save_model(tmp_path / "other", labels=("sad", "happy"))
    with pytest.raises(InputError, match="knows the classes 'sad', 'happy', the data 'neg', 'pos'.*head = 'new'"):
        build_classifier(ModelSettings(name=str(tmp_path / "other"), head=head), reviews())
    save_model(tmp_path / "unnamed")
    with pytest.raises(InputError, match="LABEL_0.*name them in the order"):
        build_classifier(ModelSettings(name=str(tmp_path / "unnamed"), head=head), reviews())
    named = build_classifier(ModelSettings(name=str(tmp_path / "unnamed"), head=head, labels=("pos", "neg")), reviews())
    assert named.classes == ("neg", "pos")
    assert named.network.model.config.id2label == {0: "neg", 1: "pos"}


@pytest.mark.parametrize("count", [2, 3])
def test_a_new_head_is_new_whatever_was_there(tmp_path, count):
    save_model(tmp_path, labels=tuple("abc"[:count]))
    made = build_classifier(ModelSettings(name=str(tmp_path), head="new"), reviews())
    old = load_text_model(str(tmp_path), tuple("abc"[:count])).network
    assert made.new_head
    assert made.network.output.out_features == 2
    if count == 2:
        assert not torch.equal(made.network.output.weight, old.output.weight)
    same = made.network.model.bert.encoder.layer[0].output.dense.weight
    assert torch.equal(same, old.model.bert.encoder.layer[0].output.dense.weight)


def test_models_that_are_not_all_there_are_refused(tmp_path):
    save_model(tmp_path / "short", labels=("neg", "pos"))
    config_file = tmp_path / "short" / "config.json"
    config_file.write_text(json.dumps(json.loads(config_file.read_text()) | {"num_hidden_layers": 6}))
    for head in ("keep", "new"):
        with pytest.raises(InputError, match="lack 32 parts"):
            build_classifier(ModelSettings(name=str(tmp_path / "short"), head=head), reviews())
    save_model(tmp_path / "mute", labels=("neg", "pos"))
    for file in (tmp_path / "mute").glob("token*"):
        file.unlink()
    with pytest.raises(InputError, match="no tokenizer|cannot be loaded"):
        build_classifier(ModelSettings(name=str(tmp_path / "mute")), reviews())
    save_model(tmp_path / "few", labels=("neg", "pos"), vocab_size=12)
    with pytest.raises(InputError, match="tokenizer knows 31 tokens, the model 12"):
        build_classifier(ModelSettings(name=str(tmp_path / "few")), reviews())


def test_an_encoder_is_no_teacher(tmp_path):
    save_model(tmp_path, head=False)
    with pytest.raises(InputError, match="no trained head"):
        build_classifier(ModelSettings(name=str(tmp_path), head="keep"), reviews())


def test_weights_in_bin_are_loaded_as_weights_only(tmp_path):
    save_model(tmp_path, labels=("neg", "pos"))
    expected = said(build_classifier(ModelSettings(name=str(tmp_path)), reviews()), reviews())["logits"]
    from safetensors.torch import load_file

    torch.save(load_file(tmp_path / "model.safetensors"), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    found = said(build_classifier(ModelSettings(name=str(tmp_path)), reviews()), reviews())["logits"]
    np.testing.assert_array_equal(found, expected)

    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    torch.save({"bert.x": Evil()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded"):
        build_classifier(ModelSettings(name=str(tmp_path)), reviews())
    assert not (tmp_path / "ran").exists()


def test_code_that_comes_with_a_model_is_not_run(tmp_path):
    save_model(tmp_path, labels=("neg", "pos"))
    config_file = tmp_path / "config.json"
    table = json.loads(config_file.read_text())
    table |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForSequenceClassification": "own.Model"}}
    config_file.write_text(json.dumps(table))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(InputError, match="cannot be loaded"):
        build_classifier(ModelSettings(name=str(tmp_path)), reviews())
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("./nowhere", "no such folder"),
        ("package:no_such_package/model", "not installed"),
        ("package:json/nothing", "holds no model"),
        ("someone/no-such-model", "cannot be loaded"),
    ],
)
def test_a_wrong_name_is_one_line(name, words, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError, match=words) as caught:
        build_classifier(ModelSettings(name=name), reviews())
    assert "\n" not in str(caught.value)


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


DAMAGES = {
    "config is cut off": lambda folder: (folder / "config.json").write_text("{"),
    "config is a list": lambda folder: (folder / "config.json").write_text("[]"),
    "width is a word": lambda folder: change_config(folder, hidden_size="x"),
    "unknown activation": lambda folder: change_config(folder, hidden_act="nothing"),
    "another width": lambda folder: change_config(folder, hidden_size=32),
    "unknown architecture": lambda folder: change_config(folder, model_type="own"),
    "not for text": lambda folder: change_config(folder, model_type="vit"),
    "weights are cut off": lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 40),
    "weights are missing": lambda folder: (folder / "model.safetensors").unlink(),
    "tokenizer is cut off": lambda folder: (folder / "tokenizer.json").write_text("{"),
    "tokenizer is a list": lambda folder: (folder / "tokenizer.json").write_text("[]"),
    "tokenizer is another table": lambda folder: (folder / "tokenizer.json").write_text('{"version": "1.0"}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_an_input_error_of_one_line(tmp_path, damage):
    save_model(tmp_path, labels=("neg", "pos"))
    DAMAGES[damage](tmp_path)
    expected = "its weights have other shapes" if damage == "another width" else "the model cannot be loaded: "
    with pytest.raises(InputError, match=expected) as caught:
        build_classifier(ModelSettings(name=str(tmp_path)), reviews())
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError, AttributeError])
def test_a_fault_of_ours_is_not_called_a_damaged_model(tmp_path, monkeypatch, error):
    def fail(*_):
        raise error("a fault of ours")

    save_model(tmp_path, labels=("neg", "pos"))
    monkeypatch.setattr("distilcal.models.pretrained._match_classes", fail)
    with pytest.raises(error, match="a fault of ours"):
        build_classifier(ModelSettings(name=str(tmp_path)), reviews())


def test_a_folder_without_a_model(tmp_path):
    with pytest.raises(InputError, match="config.json"):
        resolve_model(str(tmp_path))


def test_layers_must_exist(tmp_path):
    save_model(tmp_path, head=False)
    with pytest.raises(InputError, match="layer 9 of a model with 4 layers"):
        build_classifier(ModelSettings(name=str(tmp_path), layers=(0, 9)), reviews())


@pytest.mark.parametrize("kind", [*sorted(AFTER_ATTENTION), "deberta-v2"])
def test_multiple_choice_scores_each_ending(tmp_path, kind):
    from transformers import AutoModelForMultipleChoice

    torch.manual_seed(0)
    AutoModelForMultipleChoice.from_config(config(kind)).save_pretrained(tmp_path / "m")
    tokenizer().save_pretrained(tmp_path / "m")
    data = Dataset(
        choices(["the film", "a plot of music", "scene"], [["great", "awful dull", "fun"]] * 3), [0, 1, 2], ("0", "1", "2")
    )
    made = build_classifier(ModelSettings(name=str(tmp_path / "m"), head="keep"), data)
    found = said(made, data)
    assert found["logits"].shape == (3, 3)
    assert found["features"].shape == (3, 3, 16)
    batch = made.inputs.prepare(data).batch(np.array([0, 1, 2]))
    with torch.no_grad():
        torch.testing.assert_close(made.network(batch).logits, made.network.model(**batch).logits)
        features = made.network.encode(made.network.embed(batch), batch)
        torch.testing.assert_close(made.network.head(features), torch.from_numpy(found["logits"]), atol=1e-5, rtol=1e-5)
    one = Dataset(choices(["the film"], [["awful dull", "great", "fun"]]), [0], ("0", "1", "2"))
    np.testing.assert_allclose(said(made, one)["logits"][0], found["logits"][0][[1, 0, 2]], atol=1e-5)
    save_classifier(made, tmp_path / "saved")
    np.testing.assert_allclose(said(load_classifier(tmp_path / "saved"), data)["logits"], found["logits"], atol=1e-6)


def test_pairs_tell_the_first_text_from_the_second(tmp_path):
    save_model(tmp_path, head=False)
    pair = Dataset(texts(["great film", "awful"], ["dull", "lovely music"]), [0, 1], ("a", "b"))
    made = build_classifier(ModelSettings(name=str(tmp_path)), pair)
    made.inputs.tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    batch = made.inputs.prepare(pair).batch(np.array([0, 1]))
    assert (batch["attention_mask"].sum(dim=1) == torch.tensor([6, 6])).all()  # [CLS] a [SEP] b [SEP]
    assert batch["token_type_ids"].tolist() == [[0, 0, 0, 0, 1, 1], [0, 0, 0, 1, 1, 1]]


def test_long_texts_are_cut_and_counted(tmp_path):
    save_model(tmp_path, head=False)
    data = Dataset(texts(["great " * 50, "dull"]), [0, 1], ("a", "b"))
    made = build_classifier(ModelSettings(name=str(tmp_path), max_length=10), data)
    tokens = made.inputs.prepare(data)
    assert tokens.lengths.tolist() == [10, 3]
    assert tokens.truncated == 1


def test_positions_limit_the_length(tmp_path):
    save_model(tmp_path / "b", "bert", head=False)
    save_model(tmp_path / "r", "roberta", head=False)
    for name, limit in (("b", 32), ("r", 32)):
        made = build_classifier(ModelSettings(name=str(tmp_path / name)), reviews())
        assert made.inputs.max_length == limit
    save_model(tmp_path / "short", "roberta", head=False, max_position_embeddings=20)
    made = build_classifier(ModelSettings(name=str(tmp_path / "short")), reviews())
    assert made.inputs.max_length == 19  # one position is the padding's
    long = Dataset(texts(["great " * 50]), [0], ("a", "b"))
    assert np.isfinite(said(made, long)["logits"]).all()


def test_tokens_from_the_store_are_those_made_anew(tmp_path):
    made = classifier(tmp_path / "m")
    data = reviews(30)
    fresh, stored = made.inputs.prepare(data), made.inputs.prepare(data, tmp_path / "store")
    again = made.inputs.prepare(data, tmp_path / "store")
    assert isinstance(again.ids, np.memmap)
    for a, b in ((fresh, stored), (stored, again)):
        for key, value in a.batch(np.arange(30)).items():
            assert torch.equal(value, b.batch(np.arange(30))[key])


def test_a_batch_is_as_long_as_its_longest_text(tmp_path):
    made = classifier(tmp_path / "m")
    data = Dataset(texts(["great", "the plot of a film with music", "fun fun"]), [0, 1, 0], ("a", "b"))
    tokens = made.inputs.prepare(data)
    assert tokens.batch(np.array([0, 2]))["input_ids"].shape == (2, 4)
    assert tokens.batch(np.array([0, 1, 2]))["input_ids"].shape == (3, 9)


def test_a_folded_temperature_divides_the_logits(tmp_path):
    made = classifier(tmp_path / "m")
    before = said(made, reviews())["logits"]
    fold_temperature(made.network, 2.5)
    np.testing.assert_allclose(said(made, reviews())["logits"], before / 2.5, atol=1e-6)


def test_a_shrunk_copy_leaves_its_parent_alone(tmp_path):
    made = classifier(tmp_path / "m")
    before = made.fingerprint
    small = derive_classifier(made, ModelSettings(name="", start_from="x", layers=(1, 3)))
    with torch.no_grad():
        small.network.output.weight.zero_()
    assert made.fingerprint == before
    assert said(small, reviews())["features"].shape == (60, 16)
    save_classifier(small, tmp_path / "small")
    assert load_classifier(tmp_path / "small").network.model.config.num_hidden_layers == 2


def test_a_frozen_encoder_caches_its_features_by_content(tmp_path, monkeypatch):
    save_model(tmp_path / "m", head=False)
    data = reviews(30)
    made = build_classifier(ModelSettings(name=str(tmp_path / "m"), frozen=True, hidden=(8,)), data)
    first = made.inputs.prepare(data, tmp_path / "store").values
    monkeypatch.setattr(type(made.inputs.encoder), "forward", lambda *_: pytest.fail("the encoder ran again"))
    order = np.random.default_rng(0).permutation(30)[:11]
    assert torch.equal(made.inputs.prepare(data.select(order), tmp_path / "store").values, first[torch.from_numpy(order)])
    monkeypatch.undo()
    save_classifier(made, tmp_path / "saved")
    again = load_classifier(tmp_path / "saved")
    np.testing.assert_allclose(said(again, data)["logits"], said(made, data)["logits"], atol=1e-6)
    save_model(tmp_path / "m", head=False, seed=5)
    with pytest.raises(InputError, match="not the encoder"):
        load_classifier(tmp_path / "saved")


def test_a_frozen_encoder_does_multiple_choice(tmp_path):
    """Each choice has features and a logit of its own: in another order the logits are those, in that order."""
    save_model(tmp_path / "m", head=False)
    prompts, endings = ["the film", "a plot of music", "scene"], [["great", "awful dull", "fun"]] * 3
    data = Dataset(choices(prompts, endings), [0, 1, 2], ("0", "1", "2"))
    made = build_classifier(ModelSettings(name=str(tmp_path / "m"), frozen=True, hidden=(8,)), data)
    assert made.multiple_choice
    found = said(made, data)
    assert found["logits"].shape == (3, 3)
    assert found["features"].shape == (3, 3, 8)
    turned = Dataset(choices(prompts, [["fun", "great", "awful dull"]] * 3), [0, 1, 2], ("0", "1", "2"))
    np.testing.assert_allclose(said(made, turned)["logits"], found["logits"][:, [2, 0, 1]], atol=1e-5)
    kept = made.inputs.prepare(data, tmp_path / "store").values
    assert torch.equal(made.inputs.prepare(data, tmp_path / "store").values, kept)
    save_classifier(made, tmp_path / "saved")
    again = load_classifier(tmp_path / "saved")
    np.testing.assert_allclose(said(again, data)["logits"], found["logits"], atol=1e-6)


def test_two_texts_are_read_apart(tmp_path):
    """(u, v, |u - v|, u·v) of two texts, each read alone, also of a prompt and its endings; in the store by the texts."""
    save_model(tmp_path / "m", head=False)
    first, second = ["the film", "a plot of music"], ["great", "awful dull fun"]
    how = ModelSettings(name=str(tmp_path / "m"), frozen=True, pairs="apart")
    alone = build_classifier(ModelSettings(name=str(tmp_path / "m"), frozen=True), reviews(5)).inputs
    u, v = (alone.prepare(Dataset(texts(side))).values for side in (first, second))
    both = Dataset(texts(first, second), [0, 1], ("a", "b"))
    made = build_classifier(how, both)
    found = made.inputs.prepare(both, tmp_path / "store").values
    torch.testing.assert_close(found, torch.cat([u, v, (u - v).abs(), u * v], dim=1), atol=1e-5, rtol=1e-5)
    assert torch.equal(made.inputs.prepare(both, tmp_path / "store").values, found)
    assert made.inputs.describe() != alone.describe()
    asked = Dataset(choices(first, [second, second[::-1]]), [0, 1], ("0", "1"))
    many = build_classifier(how, asked).inputs.prepare(asked).values
    assert many.shape == (2, 2, 4 * u.shape[1])
    torch.testing.assert_close(many[1, 0], torch.cat([u[1], v[1], (u[1] - v[1]).abs(), u[1] * v[1]]), atol=1e-5, rtol=1e-5)
    save_classifier(made, tmp_path / "saved")
    again = load_classifier(tmp_path / "saved")
    np.testing.assert_allclose(said(again, both)["logits"], said(made, both)["logits"], atol=1e-6)
    single = reviews(4)
    assert torch.equal(build_classifier(how, single).inputs.prepare(single).values, alone.prepare(single).values)


def test_heads_on_one_frozen_encoder_share_it_until_its_files_change(tmp_path):
    save_model(tmp_path / "m", head=False)
    how = ModelSettings(name=str(tmp_path / "m"), frozen=True)
    first, second = (build_classifier(how, reviews(5)).inputs for _ in range(2))
    assert first.encoder is second.encoder
    save_model(tmp_path / "m", head=False, seed=5)
    third = build_classifier(how, reviews(5)).inputs
    assert third.encoder is not first.encoder
    assert third.describe() != first.describe()


def test_features_of_a_frozen_encoder_do_not_see_the_padding(tmp_path):
    save_model(tmp_path, head=False)
    data = reviews(9)
    made = build_classifier(ModelSettings(name=str(tmp_path), frozen=True), data)
    alone = torch.cat([made.inputs.prepare(data.select([i])).values for i in range(9)])
    torch.testing.assert_close(made.inputs.prepare(data).values, alone, atol=2e-6, rtol=1e-5)
