"""Sealed folders: complete or absent, and checked."""

import pytest

from distilcal.io.folders import DamagedWarning, digest, is_intact, sealed_folder


def fill(folder, text="abc"):
    with sealed_folder(folder, owner="me") as aside:
        (aside / "inside").mkdir()
        (aside / "inside" / "a.txt").write_text(text)


def test_a_sealed_folder_is_whole_or_not_there(tmp_path):
    fill(tmp_path / "f")
    assert is_intact(tmp_path / "f", owner="me")
    with pytest.raises(RuntimeError), sealed_folder(tmp_path / "g") as aside:
        (aside / "a").write_text("x")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("damage", ["changed", "removed", "manifest", "no manifest", "foreign", "format"])
def test_damaged_or_foreign_folders_are_not_used(tmp_path, damage):
    folder = tmp_path / "f"
    fill(folder)
    file, manifest = folder / "inside" / "a.txt", folder / "manifest.json"
    if damage == "changed":
        file.write_text("abd")
    elif damage == "removed":
        file.unlink()
    elif damage == "manifest":
        manifest.write_text("{")
    elif damage == "no manifest":
        manifest.unlink()
    elif damage == "format":
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 0'))
    with pytest.warns(DamagedWarning, match="computed again"):
        assert not is_intact(folder, owner="you" if damage == "foreign" else "me")
    assert not folder.exists()
    assert not is_intact(folder, owner="me")


def test_the_digest_does_not_depend_on_the_order_of_keys():
    assert digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    assert digest({"a": 1}) != digest({"a": 1.5})


def test_the_faster_of_two_writers_of_a_folder_wins(tmp_path):
    with sealed_folder(tmp_path / "f") as slow:
        (slow / "a").write_text("slow")
        with sealed_folder(tmp_path / "f") as fast:
            (fast / "a").write_text("fast")
    assert (tmp_path / "f" / "a").read_text() == "fast"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_a_file_in_the_way_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "f").write_text("in the way")
    with pytest.raises(NotADirectoryError), sealed_folder(tmp_path / "f") as folder:
        (folder / "a").write_text("x")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
