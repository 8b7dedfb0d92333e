"""Checking a store, a run or a study: what is damaged, what killed processes have left, and what is none of ours.

Nothing is removed unless a repair is asked for. A repair removes what can be computed again, and never what is foreign.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from distilcal.errors import DistilcalError, InputError, NewerFormatError, StoreError
from distilcal.io.atomic import read_json, read_object
from distilcal.io.folders import MANIFEST, damaged_files, file_digest, read_manifest, verify_folder
from distilcal.io.locks import file_lock, is_in_use, is_locked
from distilcal.io.parts import PART_NAME, SUFFIX, is_stale, remove_folder, remove_if_stale

DAMAGED, STALE, FOREIGN, NEWER = "damaged", "stale", "foreign", "newer"
SEALED = ("stages", "tokens", "measured")  # folders of the store whose entries are sealed
ROWS = ("outputs", "features")  # whose entries hold sealed folders
STORE_FOLDERS = (*SEALED, *ROWS, "points", "work", "locks")
KEY = re.compile("[0-9a-f]{20}")
LOCK, NEW = ".lock", ".new"
SEARCH_LOCK = "budget"  # in the locks of a store, while a search within a budget uses it
CHECKPOINTS = ("last.safetensors", "previous.safetensors")
RUN_FILES = (
    MANIFEST, "recipe.toml", "environment.json", "metrics.json", "evaluation.json", "report.html", "budget.json",
    ".budget.json", "frontier.html", "frontier.svg", "points.csv", "best.toml", "sweep.json", "data", "track", "model.onnx",
    "model.tokenizer.json", "model.report.json", LOCK, NEW,
)  # fmt: skip
MODEL_FILES = (
    "predictions", "calibrator.json", "calibrator.npz", "model", "dynamics", "history.json", "stage.json", "map.csv",
    "map.html",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """Something that is not as it should be.

    Attributes
    ----------
    kind : str
        "damaged", "stale" (left by a killed process), "foreign" (not written by distilcal) or "newer" (by a newer version).
    path : Path
        The file or folder.
    problem : str
        What is wrong with it.
    repaired : bool
        Whether it was removed.
    """

    kind: str
    path: Path
    problem: str
    repaired: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.path}: {self.problem}{' (removed)' if self.repaired else ''}"


@dataclass
class IntegrityReport:
    """What checking a folder has found.

    Attributes
    ----------
    folder : Path
        What was checked.
    kind : str
        "store", "run" or "study".
    findings : list of Finding
        What is not as it should be.
    notes : list of str
        What is worth knowing and no fault, such as training that can be resumed.
    checked : int
        Number of files and sealed folders that were verified.
    """

    folder: Path
    kind: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checked: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether nothing is left to do: nothing was found, or all of it was removed."""
        return all(finding.repaired for finding in self.findings)


def check_integrity(folder: Path, *, repair: bool = False) -> IntegrityReport:
    """Verify everything in a store, or in the folder of a run or a study.

    Parameters
    ----------
    folder : Path
        The folder.
    repair : bool, default False
        Whether to remove what killed processes have left, and what is damaged and can be computed again: entries of the store
        and checkpoints. Files of a run are not removed: running its recipe again writes them again.

    Returns
    -------
    IntegrityReport

    Raises
    ------
    InputError
        If the folder is none of these.

    Examples
    --------
    >>> import tempfile
    >>> store = Path(tempfile.mkdtemp())
    >>> (store / "stages" / "notes").mkdir(parents=True)
    >>> [finding.kind for finding in check_integrity(store).findings]
    ['foreign']
    """
    if not folder.is_dir():
        problem = "this is a file" if folder.exists() else "there is no such folder"
        raise InputError(problem, source=str(folder), remedy="give a store, or the folder of a run or a study")
    if any((folder / name).exists() for name in ("metrics.json", "recipe.toml")):
        return _RunCheck(IntegrityReport(folder, "run"), repair).run()
    if (folder / "results.json").exists():
        return _StudyCheck(IntegrityReport(folder, "study"), repair).run()
    if any((folder / name).is_dir() for name in STORE_FOLDERS):
        return _StoreCheck(IntegrityReport(folder, "store"), repair).run()
    raise InputError(
        "this is neither a store nor the folder of a run or a study", source=str(folder), remedy="give a folder of these"
    )


@dataclass
class _Check:
    """What the checks share: how findings are recorded and repaired."""

    report: IntegrityReport
    repair: bool

    @property
    def folder(self) -> Path:
        return self.report.folder

    def add(self, kind: str, path: Path, problem: str, remove: Callable[[], object] | None = None) -> None:
        """Record a finding; ``remove`` removes it where that is allowed, and returns False or raises if it is in use."""
        repaired = False
        if self.repair and remove is not None:
            with suppress(StoreError, OSError):
                repaired = remove() is not False
        self.report.findings.append(Finding(kind, path, problem, repaired))

    def add_foreign(self, path: Path) -> None:
        self.add(FOREIGN, path, "not written by distilcal")

    @contextmanager
    def verifying(self, path: Path, remove: Callable[[], object] | None = None) -> Iterator[None]:
        """Record an error of ours in the block as damage of this path."""
        self.report.checked += 1
        try:
            yield
        except NewerFormatError as error:
            self.add(NEWER, path, error.problem)
        except DistilcalError as error:
            if path.exists() or self.report.kind != "store":  # another process may just have removed an entry of the store
                source = Path(error.source)  # a file beside it may be the damaged one
                self.add(DAMAGED, source if source.parent == path.parent else path, error.problem, remove)

    def check_lock(self, path: Path) -> None:
        if path.is_symlink() or (path.exists() and not path.is_file()):
            self.add_foreign(path)
        elif path.exists() and not is_locked(path):
            self.add(STALE, path, "lock of a process that was killed", lambda: _remove_lock(path))

    def check_part(self, path: Path) -> bool:
        """Whether this is a temporary file or folder, which is a finding if nobody writes it."""
        if not PART_NAME.fullmatch(path.name):
            return False
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            if os.path.lexists(path):  # another process may just have removed it
                self.add_foreign(path)
        elif is_stale(path):
            self.add(STALE, path, "left by a process that was killed", lambda: remove_if_stale(path))
        return True

    def check_sealed(self, path: Path, remove: Callable[[], object] | None = None) -> None:
        """Verify a folder with a manifest, and look for files that are not in it: with these it is not removed."""
        foreign = _foreign_files(path)
        for file in foreign:
            self.add_foreign(file)
        with self.verifying(path, None if foreign else remove):
            verify_folder(path)
            manifest = read_manifest(path)
            if remove is not None and manifest.get("key", path.name) != path.name:
                raise StoreError(f"its manifest is that of {manifest['key']!r:.40}")


# ---- a store -----------------------------------------------------------------------------------------------------------


class _StoreCheck(_Check):
    def run(self) -> IntegrityReport:
        for path in sorted(self.folder.iterdir()):
            if path.name in SEALED and path.is_dir():
                self.check_entries(path)
            elif path.name in ROWS and path.is_dir():
                self.check_rows(path)
            elif path.name == "work" and path.is_dir():
                self.check_work(path)
            elif path.name == "points" and path.is_dir():
                self.check_points(path)
            elif path.name == "locks" and path.is_dir():
                for lock in sorted(path.iterdir()):
                    is_ours = KEY.fullmatch(lock.name) or lock.name == SEARCH_LOCK
                    self.check_lock(lock) if is_ours else self.add_foreign(lock)
            else:
                self.add_foreign(path)
        return self.report

    def check_entries(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            if self.check_part(path) or path.name == LOCK:
                continue
            if not path.is_dir() or not KEY.fullmatch(path.name):
                self.add_foreign(path)
                continue
            self.check_sealed(path, self._remover(path))

    def check_rows(self, folder: Path) -> None:
        for owner in sorted(folder.iterdir()):
            if self.check_part(owner):
                continue
            if not owner.is_dir():
                self.add_foreign(owner)
                continue
            self.check_lock(owner / LOCK)
            self.check_entries(owner)

    def check_points(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            if self.check_part(path):
                continue
            if path.suffix != ".json" or not KEY.fullmatch(path.stem):
                self.add_foreign(path)
                continue
            with self.verifying(path, path.unlink):
                read_object(path, ("epochs", "best", "key"))

    def check_work(self, folder: Path) -> None:
        for path in sorted(folder.iterdir()):
            if self.check_part(path):
                continue
            if not path.is_dir() or not KEY.fullmatch(path.name):
                self.add_foreign(path)
            elif (self.folder / "locks" / path.name).is_file() and is_locked(self.folder / "locks" / path.name):
                self.report.notes.append(f"{path}: in use")
            else:
                self.check_training(path)

    def check_training(self, path: Path) -> None:
        """Check the checkpoints of training that no process is at."""
        files = sorted(path.iterdir())
        foreign = [
            file
            for file in files
            if not _is_of_training(file.name) or (file.name in CHECKPOINTS and not file.is_file())  # a pipe would be waited for
        ]
        for file in foreign:
            self.add_foreign(file)
        remove = None if foreign else self._remover(path)
        if (self.folder / "stages" / path.name).exists():
            self.add(STALE, path, "checkpoints of a stage that is finished", remove)
            return
        if not any((path / name).exists() for name in CHECKPOINTS):
            self.add(STALE, path, "no checkpoint in it: training ended before the first epoch", remove)
            return
        from distilcal.training.checkpoint import load_tensors

        epochs = 0
        for file in files:
            if file in foreign:
                continue
            if file.name in CHECKPOINTS:
                with self.verifying(file, file.unlink):
                    loaded = load_tensors(file)
                    epochs = max(epochs, 0 if loaded is None else len(loaded[1].get("history", ())))
            elif file.name.endswith(SUFFIX):
                self.add(STALE, file, "left by a process that was killed", file.unlink)
        if epochs:
            self.report.notes.append(f"{path}: training that was interrupted after epoch {epochs}; the same command resumes it")

    def _remover(self, path: Path) -> Callable[[], None]:
        """Removes an entry of the store while no process can use it."""

        def remove() -> None:
            with file_lock(self.folder / "locks" / path.name, busy="in use"):
                if is_in_use(path):
                    raise StoreError("in use")
                remove_folder(path)

        return remove


# ---- runs and studies --------------------------------------------------------------------------------------------------


class _RunCheck(_Check):
    def run(self) -> IntegrityReport:
        folder, stages = self.folder, {}
        self.check_lock(folder / LOCK)
        if (folder / NEW).exists() and not is_locked(folder / LOCK):
            self.add(STALE, folder / NEW, "results of a run that was killed", lambda: remove_folder(folder / NEW))
        for name in ("recipe.toml", "environment.json"):
            with self.verifying(folder / name):
                _read(folder / name)
        if not (folder / "metrics.json").exists():
            self.report.notes.append(f"{folder}: not finished; the same command continues it")
            return self.report
        with self.verifying(folder / "metrics.json"):
            from distilcal.runs import read_run

            run = read_run(folder, verify=False)  # all checksums are compared below
            stages = run.facts["stages"]
        with self.verifying(folder / "report.html"):
            _require(folder / "report.html")
        for name, facts in stages.items():
            self.check_stage(folder / name, facts)
        for path in sorted(folder.iterdir()):
            if path.name not in RUN_FILES and path.name not in stages and not self.check_part(path) and stages:
                self.add_foreign(path)
        self.check_results()
        return self.report

    def check_results(self) -> None:
        """Verify the checksums of what else was not found to be damaged; runs of earlier versions have none."""
        if not (self.folder / MANIFEST).exists():
            self.report.notes.append(f"{self.folder}: no checksums of its results, written by an earlier version")
            return
        known = {finding.path for finding in self.report.findings}
        with self.verifying(self.folder / MANIFEST):
            for name in damaged_files(self.folder):
                if self.folder / name not in known:
                    self.add(DAMAGED, self.folder / name, "missing or damaged (wrong checksum)")

    def check_stage(self, folder: Path, facts: dict[str, object]) -> None:
        from distilcal.calibrate import load_calibrator
        from distilcal.io.predictions import read_predictions

        sets = facts["sets"]
        assert isinstance(sets, dict)
        for split in sets:
            path = folder / "predictions" / f"{split}.npz"
            with self.verifying(path):
                _require(path)
                read_predictions(path)
        if facts["calibrator"] is not None:
            path = folder / ("calibrator.json" if facts["calibrator"] == "temperature" else "calibrator.npz")
            with self.verifying(path):
                _require(path)
                load_calibrator(path)
        with self.verifying(folder / "history.json"):
            history = read_json(folder / "history.json")
            if not isinstance(history, list) or len(history) != facts["epochs"]:
                raise StoreError(f"it does not hold the {facts['epochs']} epochs that metrics.json names")
        with self.verifying(folder / "stage.json"):
            if read_object(folder / "stage.json") != facts:
                raise StoreError("it differs from metrics.json")
        has_model = facts["parameters"] is not None and not facts.get("is_baseline")
        if has_model and not (folder / "model").is_dir():
            self.add(DAMAGED, folder / "model", "the model is missing")
        for name in ("model", "dynamics"):
            if (folder / name / MANIFEST).exists():
                self.check_sealed(folder / name)
            elif (folder / name).is_dir():
                self.report.notes.append(f"{folder / name}: no checksums, written by an earlier version")
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if path.name not in MODEL_FILES and not self.check_part(path):
                    self.add_foreign(path)


class _StudyCheck(_Check):
    def run(self) -> IntegrityReport:
        from distilcal.report.studies.results import read_results

        self.check_lock(self.folder / LOCK)
        with self.verifying(self.folder / "results.json"):
            read_results(self.folder)
        for path in sorted(self.folder.iterdir()):
            self.check_part(path)
        return self.report


def _foreign_files(folder: Path) -> list[Path]:
    """What is in a sealed folder and not in its manifest: files, links, pipes, empty folders; none if it cannot tell."""
    try:
        digests = read_manifest(folder)["files"]
    except InputError:
        return []
    known = {folder / name for name in (MANIFEST, *digests)}
    misnamed = {digest for name, digest in digests.items() if not (folder / name).exists()}  # a name may be the damage

    def is_foreign(path: Path) -> bool:
        if path in known or (path.is_dir() and not path.is_symlink() and any(path.iterdir())):
            return False
        return not (misnamed and path.is_file() and not path.is_symlink() and file_digest(path) in misnamed)

    return [path for path in sorted(folder.rglob("*")) if is_foreign(path)]


def _is_of_training(name: str) -> bool:
    """Whether training writes a file of this name among its checkpoints."""
    return name in CHECKPOINTS or name.startswith("dynamics-") or (name.startswith(".") and name.endswith(SUFFIX))


def _remove_lock(path: Path) -> None:
    with file_lock(path, busy="in use"):
        pass  # who releases a lock removes its file


def _require(path: Path) -> None:
    if not path.is_file() or not path.stat().st_size:
        raise StoreError("the file is missing or empty")


def _read(path: Path) -> None:
    """Read a file that is JSON or TOML by its name."""
    if path.suffix == ".json":
        read_json(path)
        return
    import tomllib

    _require(path)
    try:
        tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        raise StoreError("this is not TOML any more") from None
