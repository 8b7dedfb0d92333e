"""distill in several processes, as accelerate launch starts them: they train together, and one of them asks the teacher."""

import json
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from processes import launch
from tiny import save_model, sentences

PROGRAM = """
import json, sys
import numpy as np
import distilcal as dc

asked = []

def teacher(texts):
    asked.append(len(texts))
    positive = np.array([0.1 + 0.8 * (len(text) % 7) / 7 for text in texts])
    return np.column_stack([1 - positive, positive])

folder = sys.argv[1]
rows = json.load(open(f"{folder}/rows.json"))
settings = {"out": f"{folder}/run", "store": f"{folder}/store", "epochs": 1, "lr": 0.005, "alone": False, "progress": False}
dc.distill(rows, teacher, student=f"{folder}/encoder", **settings)
sys.stdout.write(f"asked {len(asked)}\\n")  # in one piece: the launcher's processes do not buffer, and share the output
"""


@pytest.mark.slow
def test_of_two_processes_one_asks_the_teacher(tmp_path):
    save_model(tmp_path / "encoder", head=False)
    (tmp_path / "rows.json").write_text(json.dumps(list(zip(*sentences(300, 0), strict=True))))
    (tmp_path / "program.py").write_text(PROGRAM)
    done = launch([tmp_path / "program.py", tmp_path], 2)
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"asked \d+", done.stdout)) == ["asked 0", "asked 3"]  # train, dev and test at once each
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2
    assert (tmp_path / "run" / "data" / "train.jsonl").exists()
