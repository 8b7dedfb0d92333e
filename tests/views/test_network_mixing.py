"""Views inside networks: texts, images and hidden layers are mixed where they should be."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import tiny  # noqa: E402
from mixing_cases import batch_of  # noqa: E402

from distilcal.config.schema import ViewSettings  # noqa: E402
from distilcal.dynamics import Recorder, saliency  # noqa: E402
from distilcal.models.image import build_image_network  # noqa: E402
from distilcal.models.network import ImageNetwork, Mix, Output, VectorNetwork  # noqa: E402
from distilcal.views import Batch, StepContext, build_view  # noqa: E402
from distilcal.views.pairs import current_saliency  # noqa: E402

# ---- inside networks ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {kind: tiny.save_model(root / kind, kind, labels=("neg", "pos")) for kind in tiny.ARCHITECTURES}


def text_network(folders, kind):
    from distilcal.config.schema import ModelSettings
    from distilcal.models.classifier import build_classifier

    data = tiny.reviews(12)
    classifier = build_classifier(ModelSettings(name=str(folders[kind])), data)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # new weights are so small that all texts look alike
        for value in classifier.network.parameters():
            value.add_(torch.randn(value.shape, generator=generator), alpha=0.3)
    return classifier.network, classifier.inputs.prepare(data)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_text_mixed_with_itself_is_itself(folders, kind):
    network, tokens = text_network(folders, kind)
    inputs = tokens.batch(np.arange(6))
    with torch.no_grad():
        expected = network(inputs).logits
        share = torch.full((6,), 0.3)
        torch.testing.assert_close(network(inputs, mix=Mix(share, other=inputs)).logits, expected, rtol=1e-4, atol=1e-5)
        for layer in (1, 3):
            same = network(inputs, mix=Mix(share, layer, partner=torch.arange(6))).logits
            torch.testing.assert_close(same, expected, rtol=1e-4, atol=1e-5)
        # An example that keeps all of itself is as if alone, whatever its partner is; masks are those of both, though.
        whole = network(inputs, mix=Mix(torch.ones(6), 4, partner=torch.tensor([1, 0, 3, 2, 5, 4]))).logits
        torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_a_text_that_keeps_all_of_itself_is_itself(folders, kind):
    """However long its partner is, at the input and after a layer: the limit λ → 1 is the plain pass."""
    network, tokens = text_network(folders, kind)
    order = np.argsort(tokens.lengths)
    inputs = tokens.batch(order[[0, -1]])
    turned = {k: v[[1, 0]] for k, v in inputs.items()}
    share = torch.tensor([1.0 - 1e-6, 1.0 - 1e-6])
    with torch.no_grad():
        expected = network(inputs).features
        assert not torch.allclose(expected[0], expected[1], atol=0.05)  # they can be told apart
        torch.testing.assert_close(network(inputs, mix=Mix(share, other=turned)).features, expected, rtol=1e-3, atol=1e-4)
        hidden = network(inputs, mix=Mix(share, 2, partner=torch.tensor([1, 0]))).features
        torch.testing.assert_close(hidden, expected, rtol=1e-3, atol=1e-4)
        half = network(inputs, mix=Mix(torch.tensor([0.5, 0.5]), other=turned)).features
        assert not torch.allclose(half, expected, atol=0.01)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_padding_takes_no_part_in_a_mix_of_texts(folders, kind):
    network, tokens = text_network(folders, kind)
    lengths = tokens.lengths
    short, long = int(lengths.argmin()), int(lengths.argmax())
    assert lengths[short] < lengths[long]
    share = torch.tensor([0.4])
    with torch.no_grad():
        apart = [tokens.batch(np.array([row])) for row in (short, long)]
        alone = network(apart[0], mix=Mix(share, other=apart[1])).logits  # padded to each other only
        wide = {k: torch.nn.functional.pad(v, (0, 3)) for k, v in apart[1].items()}
        torch.testing.assert_close(network(apart[0], mix=Mix(share, other=wide)).logits, alone, rtol=1e-4, atol=1e-5)
        both = tokens.batch(np.array([short, long]))
        turned = {k: v[[1, 0]] for k, v in both.items()}
        shares = torch.tensor([0.4, 0.6])  # the same mix seen from both
        mixed = network(both, mix=Mix(shares, other=turned)).logits
        torch.testing.assert_close(mixed[:1], alone, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mixed[0], mixed[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", tiny.ARCHITECTURES)
def test_hidden_states_are_mixed_after_the_named_layer(folders, kind):
    network, tokens = text_network(folders, kind)
    inputs = tokens.batch(np.arange(6))
    partner, share = torch.tensor([3, 4, 5, 0, 1, 2]), torch.full((6,), 0.3)
    seen = {}

    def look(name):
        def hook(module, args, kwargs):
            seen[name] = args[0] if args else kwargs["hidden_states"]

        return hook

    handles = [layer.register_forward_pre_hook(look(i), with_kwargs=True) for i, layer in enumerate(network.layers)]
    with torch.no_grad():
        network(inputs)
        before = dict(seen)
        network(inputs, mix=Mix(share, 2, partner=partner))
    for handle in handles:
        handle.remove()
    torch.testing.assert_close(seen[1], before[1])  # what the second layer reads, and so on
    states = before[2] * inputs["attention_mask"][..., None]  # padding adds nothing
    torch.testing.assert_close(seen[2], 0.3 * states + 0.7 * states[partner], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(seen[3], before[3])
    assert all(not layer._forward_hooks and not layer._forward_pre_hooks for layer in network.layers)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "deberta-v2", "mpnet"])
def test_layers_after_a_mix_attend_to_the_heavier_text(folders, kind):
    """A short text mixed with a long one: padding a batch further changes nothing, so no padding is attended to."""
    network, tokens = text_network(folders, kind)
    order = np.argsort(tokens.lengths)
    rows = np.array([order[0], order[-1]])
    inputs = tokens.batch(rows)
    wide = {k: torch.nn.functional.pad(v, (0, 3)) for k, v in inputs.items()}
    mix = Mix(torch.tensor([0.4, 0.6]), 1, partner=torch.tensor([1, 0]))
    with torch.no_grad():
        narrow_logits, wide_logits = network(inputs, mix=mix).logits, network(wide, mix=mix).logits
    torch.testing.assert_close(narrow_logits, wide_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(narrow_logits[0], narrow_logits[1], rtol=1e-4, atol=1e-5)  # one mix, the same attention


def test_multiple_choice_is_mixed_ending_by_ending(folders):
    from distilcal.config.schema import ModelSettings
    from distilcal.data import Dataset, choices
    from distilcal.models.classifier import build_classifier

    texts, _ = tiny.sentences(20, 0)
    data = Dataset(choices(texts[:5], [texts[5:8], texts[6:9], texts[8:11], texts[1:4], texts[2:5]]), np.array([0, 1, 2, 0, 1]),
                   ("0", "1", "2"))  # fmt: skip
    classifier = build_classifier(ModelSettings(name=str(folders["bert"]), head="new"), data)
    inputs = classifier.inputs.prepare(data).batch(np.arange(5))
    partner, share = torch.tensor([1, 0, 4, 3, 2]), torch.full((5,), 0.4)
    with torch.no_grad():
        plainly = classifier.network(inputs)
        same = classifier.network(inputs, mix=Mix(share, other=inputs)).logits
        torch.testing.assert_close(same, plainly.logits, rtol=1e-4, atol=1e-5)
        hidden = classifier.network(inputs, mix=Mix(share, 4, partner=partner))
        assert hidden.logits.shape == (5, 3)
        again = classifier.network(inputs, mix=Mix(share, 2, partner=torch.arange(5))).logits
        torch.testing.assert_close(again, plainly.logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet8", "vgg8", "mobilenet_v2", "wrn_16_1"])
def test_pictures_are_mixed_at_the_input_and_after_stages(name):
    torch.manual_seed(0)
    network = ImageNetwork(build_image_network(name, 4)).eval()
    x = torch.randn(4, 3, 32, 32)
    partner, share = torch.tensor([1, 0, 3, 2]), torch.full((4,), 0.3)
    with torch.no_grad():
        mixed = network({"pixels": 0.3 * x + 0.7 * x[partner]}).logits
        torch.testing.assert_close(network({"pixels": x}, mix=Mix(share, other={"pixels": x[partner]})).logits, mixed)
        maps = network.body.feature_maps(x)
        deep = network({"pixels": x}, mix=Mix(share, len(network.layers), partner=partner))
        last = 0.3 * maps[-2] + 0.7 * maps[-2][partner]
        torch.testing.assert_close(deep.features, network.body.pool(last), rtol=1e-4, atol=1e-5)


def test_manifold_draws_its_layer_from_those_given():
    settings = ViewSettings(kind="manifold", layers=(0, 1, 2))
    view = build_view(settings, 3)
    torch.manual_seed(0)
    network = VectorNetwork(4, 3, hidden=(5, 6)).eval()
    drawn = set()
    for step in range(40):
        batch = batch_of(torch.randn(6, 4), [0, 1, 2, 0, 1, 2], step=StepContext(np.arange(6), (0, 0, step)))
        drawn.add(view._draw_layer(batch))
        seen = view(network, batch)
        partner = torch.from_numpy(view.pairs(None, batch, 0)[0])
        share = view.shares(batch)[:, None]
        if view._draw_layer(batch) == 2:
            features = network({"vectors": batch.inputs["vectors"]}).features
            torch.testing.assert_close(seen.features, share * features + (1 - share) * features[partner])
    assert drawn == {0, 1, 2}


def test_a_view_leaves_batch_and_network_as_they_were(folders):
    network, tokens = text_network(folders, "bert")
    inputs = tokens.batch(np.arange(6))
    before = copy.deepcopy(inputs), {k: v.clone() for k, v in network.state_dict().items()}
    batch = Batch(inputs, torch.zeros(6, dtype=torch.long), torch.zeros(6, dtype=torch.long), torch.arange(6))
    for settings in (ViewSettings(), ViewSettings(kind="manifold"), ViewSettings(kind="manifold", layers=(1, 2))):
        build_view(settings, 2)(network, batch)
    assert all(torch.equal(inputs[k], v) for k, v in before[0].items())
    assert all(torch.equal(network.state_dict()[k], v) for k, v in before[1].items())


def test_a_recorder_s_saliency_is_that_of_the_batch_view():
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=(7, 4)).astype(np.float32), rng.integers(0, 4, 7)
    recorder = Recorder([str(i) for i in range(7)], labels, "abcd")
    recorder.record(np.arange(7), logits)
    table = recorder.dynamics()
    said = Output(torch.from_numpy(logits), torch.from_numpy(logits))
    now = current_saliency(None, said, torch.from_numpy(labels), "logits")
    np.testing.assert_allclose(now, saliency(np.asarray(table.logits), table.labels), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta-v2"])
def test_partners_of_all_lengths_say_the_same_in_parts(folders, kind):
    from distilcal.views.mixing import run_by_length

    network, tokens = text_network(folders, kind)
    inputs = tokens.batch(np.arange(12))
    widths = []
    handle = network.layers[0].register_forward_hook(
        lambda m, a, o: widths.append((o if torch.is_tensor(o) else o[0]).shape[1])
    )
    with torch.no_grad():
        found = run_by_length(network, inputs)
        handle.remove()
        expected = network(inputs)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.features, expected.features, rtol=1e-4, atol=1e-5)
    assert len(widths) == 4
    assert sum(3 * w for w in widths) < inputs["input_ids"].numel()  # less padding


def test_embeddings_beyond_a_text_s_end_are_the_other_s_alone(folders):
    network, tokens = text_network(folders, "bert")
    with torch.no_grad():
        network.model.get_input_embeddings().weight[0] = 5.0  # a [PAD] that would be seen
    order = np.argsort(tokens.lengths)
    short, long = (tokens.batch(order[[i]]) for i in (0, -1))
    end = int(short["attention_mask"].sum())
    for first, second, share in ((short, long, 0.3), (long, short, 0.7)):
        with torch.no_grad():
            embedded, inputs = network.embed_mixed(first, Mix(torch.tensor([share]), other=second))
            there = network.embed(long)
        torch.testing.assert_close(embedded[:, end:], 0.7 * there[:, end:])
        assert torch.equal(inputs["attention_mask"], long["attention_mask"])


def test_kinds_of_tokens_and_length_are_those_of_the_heavier_text():
    from distilcal.models.text import TextNetwork

    network = TextNetwork.__new__(TextNetwork)
    torch.nn.Module.__init__(network)
    network.embed = lambda inputs: inputs["input_ids"][..., None].float()
    own = {"input_ids": torch.ones(2, 3).long(), "attention_mask": torch.tensor([[1, 1, 0], [1, 1, 0]]),
           "token_type_ids": torch.tensor([[0, 1, 0], [0, 1, 0]])}  # fmt: skip
    other = {"input_ids": torch.ones(2, 4).long(), "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
             "token_type_ids": torch.tensor([[1, 0, 1, 1], [1, 0, 1, 0]])}  # fmt: skip
    _, inputs = network.embed_mixed(own, Mix(torch.tensor([0.6, 0.4]), other=other))
    assert inputs["token_type_ids"].tolist() == [[0, 1, 0, 0], [1, 0, 1, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0]]


def test_endings_are_mixed_with_the_same_ending_of_the_partner(folders):
    from distilcal.config.schema import ModelSettings
    from distilcal.data import Dataset, choices
    from distilcal.models.classifier import build_classifier

    texts, _ = tiny.sentences(30, 0)
    data = Dataset(
        choices(texts[:4], [texts[4 + 3 * i : 7 + 3 * i] for i in range(4)]), np.array([0, 1, 2, 0]), ("0", "1", "2")
    )
    network = (made := build_classifier(ModelSettings(name=str(folders["bert"]), head="new"), data)).network
    inputs = made.inputs.prepare(data).batch(np.arange(4))
    read = []
    handle = network.layers[2].register_forward_pre_hook(
        lambda m, args, kwargs: read.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    partner = torch.tensor([2, 3, 1, 0])
    with torch.no_grad():
        network(inputs)
        network(inputs, mix=Mix(torch.tensor([0.1, 0.2, 0.3, 0.4]), 2, partner=partner))
    handle.remove()
    before, after = (states.view(4, 3, *states.shape[1:]) for states in read)
    before = before * inputs["attention_mask"][..., None]
    share = torch.tensor([0.1, 0.2, 0.3, 0.4]).view(-1, 1, 1, 1)
    torch.testing.assert_close(after, share * before + (1 - share) * before[partner], rtol=1e-4, atol=1e-5)
