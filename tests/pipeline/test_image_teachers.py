"""A teacher for pictures is trained by its name, as one for texts is, from a folder of pictures."""

import numpy as np
import pytest
from PIL import Image
from shell import command

import distilcal as dc
from distilcal.config.loading import load_recipe


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Dark and light pictures, of different sizes, in a folder for each class."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for name, level in (("dark", 60), ("light", 190)):
        (folder / name).mkdir()
        for number in range(110):
            pixels = rng.normal(level, 40, (32, 32, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_a_teacher_and_a_student_by_name(pictures, tmp_path):
    arguments = ["--train", pictures, "--teacher", "resnet8", "--student", "resnet8", "--epochs", "2", "--no-alone"]
    done = command("distill", *arguments, "--out", tmp_path / "run", "--store", tmp_path / "store")
    assert "Next: distilcal predict" in done.stdout
    stages = load_recipe(tmp_path / "run" / "recipe.toml").stages
    assert [stage.train.lr for stage in stages.values()] == [1e-3, 1e-3]
    student = dc.load(tmp_path / "run")
    dark = np.full((2, 32, 32, 3), 30, dtype=np.uint8)
    assert student.predict(dark) == ["dark", "dark"]


@pytest.mark.slow
def test_a_deeper_teacher_learns_in_the_default_number_of_steps(pictures, tmp_path):
    result = dc.distill(
        pictures, "resnet20", "resnet8", alone=False, progress=False, out=tmp_path / "run", store=tmp_path / "store"
    )
    for stage in ("teacher", "student"):
        assert result.metrics["stages"][stage]["sets"]["test"]["given"]["accuracy"]["value"] > 0.9


def test_the_rate_is_the_users_where_there_is_one(pictures, tmp_path):
    plan = dc.distill(pictures, "resnet20", "resnet8", lr=0.3, dry_run=True, out=tmp_path / "run", store=tmp_path / "store")
    assert {stage.settings.train.lr for stage in plan.stages} == {0.3}


@pytest.mark.parametrize(
    ("teacher", "student", "words"),
    [
        ("resnet21", "resnet8", "unknown network 'resnet21'; did you mean"),
        ("ResNet-20", "resnet8", "unknown network 'ResNet-20'; did you mean resnet20"),
        ("resnet20", "wrn_16_3", "unknown network 'wrn_16_3'; did you mean"),
        ("resnet20", None, "resnet20 has no layers to leave out; name a student"),
        ("mlp", "resnet8", "unknown network 'mlp'"),
    ],
)
def test_what_is_no_network_for_images_is_refused_at_once(pictures, tmp_path, teacher, student, words):
    named = [] if student is None else ["--student", student]
    for more in (["--dry-run"], []):
        done = command("distill", "--train", pictures, "--teacher", teacher, *named, "--out", tmp_path / "run",
                       "--store", tmp_path / "store", *more, code=2)  # fmt: skip
        assert words in done.stderr
    assert list(tmp_path.iterdir()) == []
