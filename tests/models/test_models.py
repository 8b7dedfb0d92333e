"""Networks: parameter counts and shapes of the originals, and real trained weights that reach their known accuracy."""

import os
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from golden_cases import cases  # noqa: E402

from distilcal import InputError, Predictions  # noqa: E402
from distilcal.metrics import accuracy, ece  # noqa: E402
from distilcal.models import NETWORKS, build_image_network  # noqa: E402
from distilcal.models.image import convert_padded_resnet_state  # noqa: E402

DATA = Path(os.environ.get("DISTILCAL_DATA", Path(__file__).parents[3] / "shared" / "data"))
REPDISTILLER = {
    "ResNet50": "resnet50",
    "MobileNetV2": "mobilenet_v2",
    "ShuffleV1": "shufflenet_v1",
    "ShuffleV2": "shufflenet_v2",
}
P004 = {
    "resnet56": "resnet56_bottleneck",
    "resnet110": "resnet110_bottleneck",
    "mobilenetv2": "mobilenet_v2_full",
    "shufflenetv1": "shufflenet_v1",
    "shufflenetv2": "shufflenet_v2_biased",
}
TINY = {name: f"{name}_tiny" for name in ("resnet18", "resnet34", "resnet50", "resnet110")}
ROWS = cases("models.json")["repdistiller_models"]["expected"]["rows"]
P004_ROWS = cases("models.json")["p004_models"]["expected"]["rows"]


def parameters(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['model']}-{r['num_classes']}")
def test_parameters_and_maps_of_repdistiller(row):
    net = build_image_network(REPDISTILLER.get(row["model"], row["model"]), row["num_classes"]).eval()
    assert parameters(net) == row["parameters"]
    with torch.no_grad():
        maps = net.feature_maps(torch.zeros(1, 3, 32, 32))
    assert [list(m.shape[1:]) for m in maps] == row["feature_shapes_32px"]
    assert net.head.in_features == row["penultimate_dim"]


@pytest.mark.parametrize("row", P004_ROWS, ids=lambda r: f"{r['model']}-{r['dataset']}")
def test_parameters_of_p004(row):
    names = TINY if row["dataset"] == "tiny_imagenet" and row["model"] in TINY else P004
    net = build_image_network(names.get(row["model"], row["model"]), row["output_shape"][0])
    assert parameters(net) == row["parameters"]


@pytest.mark.parametrize(
    "name", sorted(n for n in NETWORKS if not n.startswith(("resnet110", "resnet50", "resnet34", "densenet")))
)
class TestEveryNetwork:
    def test_head_on_features_is_the_network(self, name):
        torch.manual_seed(0)
        net = build_image_network(name, 7).eval()
        x = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            logits = net(x)
            np.testing.assert_array_equal(net.head(net.features(x)), logits)
            np.testing.assert_array_equal(net.feature_maps(x)[-1], net.features(x))
        assert logits.shape == (2, 7)
        assert torch.isfinite(logits).all()

    def test_every_parameter_learns(self, name):
        torch.manual_seed(0)
        net = build_image_network(name, 3)
        net(torch.randn(4, 3, 32, 32)).square().sum().backward()
        for key, parameter in net.named_parameters():
            assert parameter.grad is not None, key
            assert torch.isfinite(parameter.grad).all(), key

    def test_rows_do_not_touch_each_other_when_it_predicts(self, name):
        torch.manual_seed(0)
        net = build_image_network(name, 3).eval()
        x = torch.randn(3, 3, 32, 32)
        with torch.no_grad():
            np.testing.assert_allclose(net(x)[:1], net(x[:1]), rtol=1e-4, atol=1e-5)

    def test_the_seed_decides(self, name):
        torch.manual_seed(3)
        first = build_image_network(name, 3)
        torch.manual_seed(3)
        second = build_image_network(name, 3)
        assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True))


def test_unknown_networks_are_refused_with_near_names():
    with pytest.raises(InputError, match="resnet56"):
        build_image_network("ResNet-56", 10)
    with pytest.raises(InputError, match="at least two"):
        build_image_network("resnet8", 1)


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA / "cifar10_resnets").is_dir(), reason="no trained ResNets: set DISTILCAL_DATA to a folder with them"
)
def test_a_trained_resnet_reaches_its_accuracy_and_ece():
    images = pytest.importorskip("PIL.Image")
    load_file = pytest.importorskip("safetensors.torch").load_file
    net = build_image_network("resnet20_padded", 10).eval()
    net.load_state_dict(convert_padded_resnet_state(load_file(DATA / "cifar10_resnets" / "resnet20.safetensors")), strict=False)
    missing = set(net.state_dict()) - set(
        convert_padded_resnet_state(load_file(DATA / "cifar10_resnets" / "resnet20.safetensors"))
    )
    assert all(key.endswith("num_batches_tracked") for key in missing)
    sheet = np.asarray(images.open(DATA / "cifar10" / "test.webp").convert("RGB"))
    pixels = sheet.reshape(-1, 32, 100, 32, 3).swapaxes(1, 2).reshape(-1, 32, 32, 3)
    with np.load(DATA / "cifar10" / "labels.npz") as arrays:
        labels = arrays["test_labels"]
    mean, spread = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    logits = []
    with torch.no_grad():
        for start in range(0, len(pixels), 500):
            x = (torch.from_numpy(pixels[start : start + 500].copy()).float() / 255 - mean) / spread
            logits.append(net(x.permute(0, 3, 1, 2)))
    p = Predictions.from_logits(torch.cat(logits).numpy(), labels)
    assert accuracy(p.probs, p.labels) == pytest.approx(0.9173, abs=2e-4)
    assert ece(p.probs, p.labels) == pytest.approx(0.0532, abs=2e-4)


@pytest.mark.parametrize("name", ["resnet18_tiny", "resnet34_tiny", "densenet121"])
def test_networks_for_64_pixels(name):
    net = build_image_network(name, 5).eval()
    with torch.no_grad():
        assert net(torch.zeros(1, 3, 64, 64)).shape == (1, 5)
        assert net.features(torch.zeros(1, 3, 64, 64)).shape == (1, net.head.in_features)
