"""Golden cases: fixed inputs and the numbers that reference implementations give for them."""

import json
from pathlib import Path
from typing import Any


def cases(file: str) -> dict[str, dict[str, Any]]:
    content = json.loads((Path(__file__).parent / "golden" / file).read_text(encoding="utf-8"))
    return {case["id"]: case for case in content["cases"]}
