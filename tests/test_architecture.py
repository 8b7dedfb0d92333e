"""Imports go one way, and the side that reads Predictions knows no torch."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

import distilcal

ROOT = Path(distilcal.__file__).parent
# A module may import from those before it, never from those after it. Inside a package, imports are free.
ORDER = [
    "errors",
    "arguments",
    "imports",
    "io",
    "config",
    "softmax",
    "predictions",
    "io.answers",
    "io.predictions",
    "metrics",
    "calibrate",
    "selective",
    "dynamics",
    "evaluation",
    "endpoints",
    "runs",
    "report",
    "data",
    "inference",
    "losses",
    "models",
    "views",
    "training",
    "pipeline",
    "integrity",
    "export",
    "inference.teachers",
    "study",
    "serve",
    "api",
    "integrations",
    "cli",
    "__main__",
]
USES_TORCH = {"losses", "models", "views", "training", "integrations", "pipeline", "export", "study"}
# Predictions.load and .save open files when they are called, and a student loads the teacher that it defers to; nothing else
# looks ahead.
LOOKS_AHEAD = {("predictions", "io.predictions"), ("inference", "inference.teachers")}


def imported(path: Path) -> set[str]:
    """The distilcal modules and the outside packages that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def part(names: Sequence[str]) -> str:
    """The entry of ORDER that a module belongs to: its own name where that is listed, else its package's."""
    dotted = ".".join(names[:2])
    return dotted if dotted in ORDER else names[0]


def module_names(path: Path) -> list[str]:
    return list(path.relative_to(ROOT).with_suffix("").parts)


FILES = [p for p in sorted(ROOT.rglob("*.py")) if p != ROOT / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path):
    own = part(module_names(path))
    assert own in ORDER, f"enter {own} in ORDER where it belongs"
    for name in imported(path):
        if name.startswith("distilcal."):
            other = part(name.split(".")[1:])
            assert other == own or ORDER.index(other) < ORDER.index(own) or (own, other) in LOOKS_AHEAD, (
                f"{own} imports {other}"
            )


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_reads_predictions_knows_no_torch(path):
    if part(module_names(path)) in USES_TORCH:
        return
    assert not {name for name in imported(path) if name.split(".")[0] in ("torch", "transformers", "sklearn", "pandas")}


# Functions that measure, compare, resample or fit: the report shows what they returned and never calls them.
COMPUTES = {
    "evaluate", "compare", "reliability", "evaluate_set", "evaluate_model", "risk_coverage", "threshold", "binomial_interval",
    "paired_interval", "regions", "aum_halves", "likely_mislabelled", "build_map", "load_calibrator", "cross_fitted",
}  # fmt: skip


@pytest.mark.parametrize("path", sorted((ROOT / "report").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_report_computes_nothing(path):
    """What it shows was measured before and is stored."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distilcal")
        for alias in node.names
    }
    assert not {name for name in names if name in COMPUTES or name.startswith("fit_")}


@pytest.mark.parametrize("path", sorted((ROOT / "report").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_report_imports_no_private_names(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distilcal"):
            assert not [alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "__version__"]


def test_no_module_imports_private_names_of_another():
    private = [
        f"{path.relative_to(ROOT)}: {alias.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distilcal")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not private


def test_no_two_classes_have_one_name():
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in FILES]
    names = [node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_public_names_resolve():
    for name in distilcal.__all__:
        assert getattr(distilcal, name) is not None
    with pytest.raises(AttributeError):
        _ = distilcal.nothing
