"""Corruptions: what holds for all of them, a few against a second implementation, and their way into a recipe."""

import colorsys
import io

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from tiny import write_csv

from distilcal.config.loading import parse_recipe
from distilcal.config.schema import DataSettings
from distilcal.data import CORRUPTIONS, Dataset, Images, Vectors, choices, corrupted, corruptions, texts
from distilcal.data.corruptions import SEVERITIES
from distilcal.data.image_corruptions import IMAGE_CORRUPTIONS, Draws, _enlarge, _sample, _smear
from distilcal.data.splits import read_splits
from distilcal.data.text_corruptions import TEXT_CORRUPTIONS
from distilcal.errors import InputError

SAME_FOR_ALL_SEEDS = {
    "gaussian_blur", "defocus_blur", "zoom_blur", "brightness", "contrast", "saturate", "pixelate", "jpeg_compression",
}  # fmt: skip
LEAVE_PLAIN_COLOURS = {
    "gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform", "pixelate",
}  # fmt: skip


def pictures(n=7, height=32, width=32, seed=0):
    """Coloured blobs with edges, somewhat like photographs."""
    rng = np.random.default_rng(seed)
    smooth = ndimage.gaussian_filter(rng.normal(size=(n, height, width, 3)), (0, 3, 3, 0.3))
    blobs = (
        smooth / smooth.std() * 45
        + 120
        + 40 * (ndimage.gaussian_filter(rng.normal(size=(n, height, width, 1)), (0, 4, 4, 0)) > 0)
    )
    shares = rng.dirichlet(np.ones(3), n)
    return Dataset(Images(np.clip(blobs, 0, 255).astype(np.uint8)), rng.integers(0, 3, n), ("a", "b", "c"), label_probs=shares)


def reviews(n=7, seed=0):
    rng = np.random.default_rng(seed)
    words = "The film was surely great but Its plot felt dull and far too long for children Über".split()  # noqa: SIM905
    made = [" ".join(rng.choice(words, 30)) for _ in range(n)]
    return Dataset(texts(made), rng.integers(0, 2, n), ("bad", "good"), label_probs=rng.dirichlet(np.ones(2), n))


def data_for(name, **named):
    return pictures(**named) if name in IMAGE_CORRUPTIONS else reviews(**named)


def content(data):
    return data.inputs.pixels if isinstance(data.inputs, Images) else data.inputs.text


def same(a, b):
    return np.array_equal(content(a), content(b))


# ---- what holds for all ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_only_what_a_model_reads_is_changed(name):
    data = data_for(name)
    before = content(data).copy()
    made = corrupted(data, name, 4)
    assert np.array_equal(content(data), before)
    assert content(made).shape == before.shape
    assert content(made).dtype == before.dtype
    assert not same(made, data)
    assert (made.name, made.role, made.classes) == (f"{name}-4", "ood", data.classes)
    assert made.labels.tolist() == data.labels.tolist()
    assert np.allclose(made.label_probs, data.label_probs)
    assert made.ids.tolist() == [f"{i}@{name}:4" for i in data.ids]


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_five_severities_are_the_single_ones_in_turn(name):
    data = data_for(name, n=3)
    made = corrupted(data, name)
    singles = [corrupted(data, name, severity) for severity in SEVERITIES]
    assert np.array_equal(content(made), np.concatenate([content(s) for s in singles]))
    assert made.ids.tolist() == [i for s in singles for i in s.ids]
    assert made.groups.tolist() == [*data.ids] * 5
    assert made.labels.tolist() == [*data.labels] * 5
    assert np.allclose(made.label_probs, np.tile(data.label_probs, (5, 1)))
    assert (made.name, made.role) == (name, "ood")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_the_seed_decides(name):
    data = data_for(name)
    first = corrupted(data, name, 3, seed=1)
    assert same(first, corrupted(data, name, 3, seed=1))
    assert same(first, corrupted(data, name, 3, seed=2)) == (name in SAME_FOR_ALL_SEEDS)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_an_example_is_changed_alike_whatever_stands_beside_it(name, monkeypatch):
    data = data_for(name)
    whole = corrupted(data, name)
    rows = np.array([5, 2])
    assert same(corrupted(data.select(rows), name, 3), whole.select(2 * len(data) + rows))
    assert same(corrupted(data.select([4]), name, 5), whole.select([4 * len(data) + 4]))
    for chunk in (1, 3 * 32 * 32):
        monkeypatch.setattr(corruptions, "CHUNK", chunk)
        assert same(corrupted(data, name), whole)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "elastic_transform"])
def test_the_highest_severity_changes_more_than_the_lowest(name):
    data = data_for(name, n=12)
    weak, strong = (distance(content(corrupted(data, name, severity)), content(data)) for severity in (1, 5))
    assert 0 < weak < strong


def distance(a, b):
    """The mean change of a pixel; of texts the mean share of places that read differently, the shorter padded."""
    if a.dtype == np.uint8:
        return np.abs(a.astype(float) - b).mean()
    return np.mean([sum(x != y for x, y in zip(s.ljust(len(t)), t, strict=False)) / len(t) for s, t in zip(a, b, strict=True)])


def test_elastic_maps_bend_more_with_severity():
    """At severity 1 they move most pixels, but straight: a ramp stays a ramp. Then they move them less and unevenly."""
    ramp = np.broadcast_to(np.arange(0, 256, 8, dtype=np.uint8)[:, None, None], (32, 32, 3))
    made = corrupted(Dataset(Images(np.stack([ramp, ramp.swapaxes(0, 1)]))), "elastic_transform").inputs.pixels
    inside = made.reshape(5, 2, 32, 32, 3)[:, :, 6:-6, 6:-6].astype(float)
    bent = [np.abs(np.diff(inside, 2, axis=axis)).mean(axis=(1, 2, 3, 4)) for axis in (2, 3)]
    first, *_, fourth, fifth = bent[0] + bent[1]
    assert 2 * first < fourth
    assert 1.5 * fourth < fifth


@pytest.mark.parametrize("name", IMAGE_CORRUPTIONS)
def test_images_of_any_size(name):
    for height, width in ((8, 8), (64, 64), (9, 14), (3, 2), (1, 1)):
        data = pictures(n=2, height=height, width=width)
        assert corrupted(data, name).inputs.pixels.shape == (10, height, width, 3)


@pytest.mark.parametrize("name", IMAGE_CORRUPTIONS)
def test_images_of_one_colour(name):
    colours = np.array([[0, 0, 0], [255, 255, 255], [128, 128, 128], [200, 30, 77]], dtype=np.uint8)
    plain = np.broadcast_to(colours[:, None, None], (4, 32, 32, 3)).copy()
    made = corrupted(Dataset(Images(plain)), name).inputs.pixels.reshape(5, *plain.shape)
    if name in LEAVE_PLAIN_COLOURS:
        assert (made == plain).all()
    assert made.shape == (5, *plain.shape)


def test_groups_of_the_data_stay():
    data = reviews(4)
    grouped = Dataset(data.inputs, data.labels, data.classes, groups=np.array(["u", "v", "v", "u"]))
    assert corrupted(grouped, "typos").groups.tolist() == ["u", "v", "v", "u"] * 5
    assert corrupted(grouped, "typos", 2).groups.tolist() == ["u", "v", "v", "u"]
    assert corrupted(data, "typos", 2).groups is None


def test_corruptions_can_follow_each_other_and_need_no_labels():
    data = Dataset(pictures(2).inputs, ids=np.array(["x", "y"]))
    twice = corrupted(corrupted(data, "fog", 1), "shot_noise", 2)
    assert twice.ids.tolist() == ["x@fog:1@shot_noise:2", "y@fog:1@shot_noise:2"]
    assert twice.labels is None


# ---- against a second implementation -----------------------------------------------------------------------------------


def one(name, severity, pixels, **named):
    return corrupted(Dataset(Images(pixels[None])), name, severity, **named).inputs.pixels[0].astype(int)


def floor(values):
    return np.floor(np.clip(values, 0, 255) + 1e-3).astype(int)


@pytest.fixture
def picture():
    return pictures(1, 32, 30, seed=5).inputs.pixels[0]


@pytest.mark.parametrize(("severity", "more"), [(1, 0.05), (5, 0.3)])
def test_brightness_raises_the_value_of_hsv(picture, severity, more):
    picture[0, 0] = 0
    expected = np.empty(picture.shape)
    for at in np.ndindex(picture.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(picture[at] / 255))
        expected[at] = colorsys.hsv_to_rgb(hue, saturation, min(value + more, 1))
    assert np.abs(one("brightness", severity, picture) - floor(255 * expected)).max() <= 1
    assert (one("brightness", severity, picture) == floor(255 * expected)).mean() > 0.999


@pytest.mark.parametrize(("severity", "times", "plus"), [(2, 0.1, 0), (5, 2.5, 0.2)])
def test_saturate_changes_the_saturation_of_hsv(picture, severity, times, plus):
    picture[0, 0], picture[1, 1] = 0, 90
    expected = np.empty(picture.shape)
    for at in np.ndindex(picture.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(picture[at] / 255))
        expected[at] = colorsys.hsv_to_rgb(hue, min(saturation * times + plus, 1), value)
    assert np.abs(one("saturate", severity, picture) - floor(255 * expected)).max() <= 1
    assert (one("saturate", severity, picture) == floor(255 * expected)).mean() > 0.999


def test_contrast_is_about_the_mean_colour(picture):
    mean = picture.reshape(-1, 3).mean(axis=0)
    assert np.array_equal(one("contrast", 3, picture), floor(0.4 * picture + 0.6 * mean))


def test_gaussian_blur_is_that_of_scipy(picture):
    blurred = np.stack([ndimage.gaussian_filter(picture[..., c].astype(float), 0.7, mode="nearest") for c in range(3)], axis=2)
    assert np.array_equal(one("gaussian_blur", 3, picture), floor(blurred))


def test_defocus_spreads_a_point_over_a_disk():
    point = np.zeros((15, 15, 3), dtype=np.uint8)
    point[7, 7] = 255
    spread = one("defocus_blur", 5, point)[..., 0]
    assert np.argwhere(spread > 20).tolist() == [[i, j] for i in (6, 7, 8) for j in (6, 7, 8)]
    assert (spread[6:9, 6:9] == 28).all()  # 255 / 9


def test_glass_blur_is_the_published_loop(picture):
    sigma, times = 0.4, 2
    stream = corruptions._stream(f"0 glass_blur {Dataset(Images(picture[None])).content_keys[0]}")
    back = Draws([stream]).uniform(times, 2, 32, 30)[0] < 0.5
    x = floor(ndimage.gaussian_filter(picture.astype(float), (sigma, sigma, 0), mode="nearest"))
    for k in range(times):
        for i in range(31, 1, -1):
            for j in range(29, 1, -1):
                x[i, j] = x[i - back[k, 0, i, j], j - back[k, 1, i, j]]
    expected = ndimage.gaussian_filter(x.astype(float), (sigma, sigma, 0), mode="nearest")
    assert np.array_equal(one("glass_blur", 5, picture), floor(expected))


def test_a_smear_is_a_half_gaussian_along_a_line(picture):
    x = (picture / 255).astype(np.float32)
    for degrees, (down, right) in {0: (0, 1), 90: (1, 0), -90: (-1, 0), 45: (1, 1)}.items():
        # At 45° a step goes 0.707 pixels both ways.
        steps = [round(k * 0.7071067) if degrees == 45 else k for k in range(13)]
        weights = np.exp(-0.5 * (np.arange(13) / 1.5) ** 2)
        padded = np.pad(x, ((13, 13), (13, 13), (0, 0)), mode="edge")
        moved = [padded[13 + s * down : 45 + s * down, 13 + s * right : 43 + s * right] for s in steps]
        expected = sum(w * m for w, m in zip(weights / weights.sum(), moved, strict=True))
        made = _smear(x[None], 6, 1.5, np.array([degrees], dtype=np.float32))[0]
        assert np.abs(made - expected).max() < 1e-3


@pytest.mark.parametrize("factor", [1.0, 1.06, 1.25, 2.25])
def test_an_enlarged_middle_is_that_of_scipy(picture, factor):
    kept = [int(np.ceil(side / factor)) for side in picture.shape[:2]]
    top, left = ((side - k) // 2 for side, k in zip(picture.shape, kept, strict=False))
    grey = picture[..., 0].astype(np.float32)
    large = ndimage.zoom(grey[top : top + kept[0], left : left + kept[1]], factor, order=1)
    top, left = ((big - side) // 2 for big, side in zip(large.shape, grey.shape, strict=True))
    expected = large[top : top + 32, left : left + 30]
    assert np.abs(_enlarge(grey[None], factor)[0] - expected).max() < 1e-3


def test_pixels_between_are_those_of_scipy(picture):
    grey = picture[..., :1].astype(np.float32)
    rng = np.random.default_rng(0)
    rows, columns = rng.uniform(-20, 50, (2, 1, 32, 30))
    expected = ndimage.map_coordinates(grey[..., 0], [rows[0], columns[0]], order=1, mode="mirror")
    assert np.abs(_sample(grey[None], rows, columns)[0, ..., 0] - expected).max() < 1e-2


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate_is_that_of_pillow(severity):
    picture = pictures(1).inputs.pixels[0]  # 32 × 32: with 30 pixels, some lie on the border of boxes and rounding decides
    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    small = Image.fromarray(picture).resize((int(32 * share), int(32 * share)), Image.Resampling.BOX)
    expected = np.asarray(small.resize((32, 32), Image.Resampling.BOX)).astype(int)
    assert np.abs(one("pixelate", severity, picture) - expected).max() <= 2  # Pillow rounds after each direction


def test_jpeg_is_that_of_pillow(picture):
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=40)
    assert np.array_equal(one("jpeg_compression", 5, picture), np.asarray(Image.open(file)).astype(int))


@pytest.mark.parametrize(
    ("name", "deviation"),
    [("gaussian_noise", 0.09), ("speckle_noise", 0.16 * 128 / 255), ("shot_noise", (128 / 255 / 75) ** 0.5)],
)
def test_noise_has_the_deviation_it_should(name, deviation):
    grey = np.full((200, 200, 3), 128, dtype=np.uint8)
    noise = one(name, 4, grey) / 255
    assert noise.std() == pytest.approx(deviation, rel=0.02)
    assert noise.mean() == pytest.approx(127.5 / 255, abs=0.002)


def test_impulses_are_black_and_white_in_equal_shares():
    grey = np.full((200, 200, 3), 128, dtype=np.uint8)
    noise = one("impulse_noise", 4, grey)
    assert [(noise == v).mean().round(3) for v in (0, 128, 255)] == pytest.approx([0.025, 0.95, 0.025], abs=0.003)


def test_weather_lightens_the_dark_and_mud_is_brown():
    dark = np.full((32, 32, 3), 20, dtype=np.uint8)
    for name in ("snow", "frost"):
        assert one(name, 5, dark).mean() > 45
    muddy = one("spatter", 5, np.full((32, 32, 3), 255, dtype=np.uint8)).reshape(-1, 3)
    assert (muddy == 255).all(axis=1).mean() > 0.5
    assert (muddy[muddy.sum(axis=1).argmin()] <= [105, 90, 75]).all()
    veiled = one("fog", 5, pictures(1).inputs.pixels[0])
    assert veiled.std(axis=(0, 1)).mean() < 0.7 * pictures(1).inputs.pixels[0].std(axis=(0, 1)).mean()


# ---- texts -------------------------------------------------------------------------------------------------------------

ODD = ["", " ", "a", "A b", "Ω", "πρώτος λόγος", "…!?", "good\n\nbad ", "é", "ß strasse", "日本語", "x" * 500]


@pytest.mark.parametrize("name", TEXT_CORRUPTIONS)
def test_no_text_is_emptied(name):
    data = Dataset(texts(ODD * 20), ids=np.arange(len(ODD) * 20).astype(str))
    for seed in range(5):
        made = corrupted(data, name, seed=seed).inputs.text.tolist()
        assert all(bool(after.strip()) == bool(before.strip()) for after, before in zip(made, ODD * 100, strict=True))


@pytest.mark.parametrize("name", TEXT_CORRUPTIONS)
def test_both_texts_of_a_pair_and_all_choices_are_changed(name):
    long = reviews(8).inputs.text
    pair = corrupted(Dataset(texts(long[:4], long[4:])), name, 4).inputs
    assert (pair.text != long[:4]).all()
    assert (pair.pair != long[4:]).all()
    many = corrupted(Dataset(choices(long[:2], [long[2:5], long[5:]])), name).inputs
    assert many.endings.shape == (10, 3)
    assert (many.prompt[-2:] != long[:2]).all()
    assert (many.endings[-2:] != np.array([long[2:5], long[5:]])).all()


def test_typos_hit_so_many_letters_and_grow_with_severity():
    data = Dataset(texts(["e" * 20_000]))
    for severity, share in zip(SEVERITIES, (0.02, 0.04, 0.07, 0.11, 0.16), strict=True):
        made = corrupted(data, "typos", severity).inputs.text[0]
        # Of equal letters a swap is not seen; a quarter each is dropped, followed by another or replaced by it.
        assert made.count("e") == pytest.approx(20_000 * (1 - share / 2), rel=0.005)
        assert set(made) == set("ewrsd")
    word = corrupted(Dataset(texts(["Hello WORLD, 1234 … " * 50])), "typos", 5).inputs.text[0]
    assert word.count(" ") == 200
    assert word.count("1234") == 50
    assert sum(c.isupper() for c in word) == pytest.approx(300, abs=20)


def test_dropped_words_leave_the_others_in_order():
    words = [f"w{i}" for i in range(2000)]
    kept: set[str] = set(words)
    for severity, share in zip(SEVERITIES, (0.05, 0.1, 0.2, 0.3, 0.5), strict=True):
        left = corrupted(Dataset(texts([" ".join(words)])), "word_drop", severity).inputs.text[0].split(" ")
        assert left == [w for w in words if w in set(left)]
        assert len(left) == pytest.approx(2000 * (1 - share), rel=0.05)
        assert set(left) <= kept
        kept = set(left)


def test_casing_changes_no_letter():
    data = reviews()
    for severity in SEVERITIES:
        made = corrupted(data, "casing", severity)
        assert [t.casefold() for t in made.inputs.text] == [t.casefold() for t in data.inputs.text]
    assert made.inputs.text.tolist() == [t.upper() for t in data.inputs.text]


# ---- errors and recipes ------------------------------------------------------------------------------------------------


def vectors():
    return Dataset(Vectors(np.ones((3, 2), dtype=np.float32)), name="table")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: corrupted(pictures(1), "forst"), "no corruption 'forst'; did you mean frost"),
        (lambda: corrupted(pictures(1), "xyz"), "no corruption 'xyz'; they are gaussian_noise, shot_noise"),
        (lambda: corrupted(pictures(1), "frost", 0), "severity 0 of 'frost' is not one of 1 to 5"),
        (lambda: corrupted(pictures(1), "frost", 6), "severity 6 of 'frost'"),
        (lambda: corrupted(reviews(1), "frost", 1), "'frost' is for images, and 'data' holds texts; for texts there are typos"),
        (lambda: corrupted(pictures(1), "typos", 1), "'typos' is for texts, and 'data' holds images; .* frost"),
        (lambda: corrupted(vectors(), "typos"), "'typos' is for texts, and 'table' holds vectors; leave it out"),
        (lambda: corrupted(vectors(), "fog"), "'fog' is for images, and 'table' holds vectors; leave it out"),
        (lambda: corruptions.parse_corruption("frost:"), "'frost:' has no severity .* write frost:3"),
        (lambda: corruptions.parse_corruption("frost:hard"), "'frost:hard' has no severity"),
        (lambda: corruptions.parse_corruption("frost:6"), "severity 6 of 'frost'"),
        (lambda: corruptions.parse_corruption("frots:x"), "no corruption 'frots'"),
    ],
)
def test_what_cannot_be_done_is_said(make, words):
    with pytest.raises(InputError, match=words):
        make()


def test_a_recipe_names_corruptions_of_its_test(tmp_path):
    train, other = str(write_csv(tmp_path / "t.csv", 200, 0)), str(write_csv(tmp_path / "typos.csv", 30, 1))
    settings = DataSettings(train=train, ood=(other,), corrupt=("typos", "casing:1", "word_drop:5"), limit_test=20, seed=3)
    splits = read_splits(settings)
    assert [(d.name, d.role, len(d)) for d in splits.ood] == [
        ("typos-2", "ood", 20),  # the file, since typos stands for the corruption
        ("typos", "ood", 100),
        ("casing-1", "ood", 20),
        ("word_drop-5", "ood", 20),
    ]
    assert splits.ood[2].ids.tolist() == [f"{i}@casing:1" for i in splits.test.ids]
    assert same(splits.ood[1], corrupted(splits.test, "typos", seed=3))
    # What only changes case is still the test's example, and the test shares none with train.
    assert not {o.second for o in splits.overlaps()} & {"test", "casing-1"}


def test_a_recipe_corrupts_images(tmp_path):
    data = pictures(40, 8, 8)
    np.savez(tmp_path / "i.npz", images=data.inputs.pixels, labels=data.labels, classes=np.array(data.classes))
    splits = read_splits(DataSettings(train=str(tmp_path / "i.npz"), corrupt=("frost", "snow:5")))
    assert [(d.name, len(d) // len(splits.test)) for d in splits.ood] == [("frost", 5), ("snow-5", 1)]
    with pytest.raises(InputError, match="'typos' is for texts, and 'test' holds images"):
        read_splits(DataSettings(train=str(tmp_path / "i.npz"), corrupt=("typos:2",)))
    with pytest.raises(InputError, match="did you mean frost"):
        read_splits(DataSettings(train="nothing.csv", corrupt=("forst",)))


def test_a_corruption_stands_once_in_a_recipe():
    table = {"data": {"train": "t.csv", "corrupt": ["fog", "fog"]}, "stages": {"s": {"model": {"name": "m"}}}}
    with pytest.raises(InputError, match="data: corrupt contains 'fog' twice"):
        parse_recipe(table)
