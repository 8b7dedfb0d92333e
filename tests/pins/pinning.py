"""Numbers that must not change: kept in pinned/*.json, compared path by path.

``DISTILCAL_REPIN=1 pytest tests/pins`` writes them anew. Floats may differ by a ten-thousandth, as they do between CPUs (an ECE
by 1e-5), and a decimal number within a text by one in its last digit; with ``DISTILCAL_PIN_EXACT=1`` nothing may differ at all.
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import re
from pathlib import Path

PINNED = Path(__file__).parent / "pinned"
RELATIVE, ABSOLUTE = 1e-4, 1e-6
# A calibration error is the difference of two numbers of order 1, whose absolute errors it keeps: they may differ by RELATIVE.
GAP, ABSOLUTE_OF_GAP = re.compile(r"/ece(/|$)"), 1e-5
WIDTH = 124
SHOWN = 10
DECIMAL = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


def exact() -> bool:
    """Whether not even the last bit may differ."""
    return os.environ.get("DISTILCAL_PIN_EXACT", "") == "1"


def repinning() -> bool:
    """Whether what is found is to be pinned."""
    return os.environ.get("DISTILCAL_REPIN", "") == "1"


def check(name: str, found: dict, leave_out: tuple[str, ...] = ()) -> None:
    """What was found is what is pinned under this name, but for the parts that are left out."""
    found = json.loads(json.dumps(found))
    path = PINNED / f"{name}.json"
    if repinning():
        PINNED.mkdir(exist_ok=True)
        path.write_text(as_text(found) + "\n", encoding="utf-8")
        return
    assert path.exists(), f"nothing is pinned as {name}: DISTILCAL_REPIN=1 pytest tests/pins pins it"
    pinned = json.loads(path.read_text(encoding="utf-8"))
    for part in leave_out:
        pinned.pop(part, None)
        found.pop(part, None)
    differ = differences(pinned, found)
    if differ:
        more = [f"… and {len(differ) - SHOWN} more"] if len(differ) > SHOWN else []
        raise AssertionError("\n".join([f"{name}: {len(differ)} differ from what is pinned", *differ[:SHOWN], *more]))


def differences(pinned: object, found: object, path: str = "") -> list[str]:
    """Every path at which two JSON values differ, with both."""
    if isinstance(pinned, dict) and isinstance(found, dict):
        made = [f"{path}/{key}: pinned, but no longer there" for key in pinned if key not in found]
        made += [f"{path}/{key}: there, but not pinned" for key in found if key not in pinned]
        for key in pinned:
            if key in found:
                made += differences(pinned[key], found[key], f"{path}/{key}")
        if not made and exact() and list(pinned) != list(found):
            made = [f"{path}: in the order {', '.join(found)}, pinned as {', '.join(pinned)}"]
        return made
    if isinstance(pinned, list) and isinstance(found, list):
        made = [] if len(pinned) == len(found) else [f"{path}: {len(found)} entries, pinned are {len(pinned)}"]
        for i, (a, b) in enumerate(zip(pinned, found, strict=False)):
            made += differences(a, b, f"{path}/{i}")
        return made
    absolute = ABSOLUTE_OF_GAP if GAP.search(path) else ABSOLUTE
    return [] if same(pinned, found, absolute) else [f"{path}: {found!r}, pinned is {pinned!r}"]


def same(pinned: object, found: object, absolute: float = ABSOLUTE) -> bool:
    """Whether two plain values are the same, as far as they have to be."""
    if exact() or type(pinned) is not type(found):
        return type(pinned) is type(found) and (pinned == found or (pinned != pinned and found != found))
    if isinstance(pinned, float):
        return (pinned != pinned and found != found) or math.isclose(pinned, found, rel_tol=RELATIVE, abs_tol=absolute)
    return same_text(pinned, found) if isinstance(pinned, str) else pinned == found


def same_text(pinned: str, found: str) -> bool:
    """Whether two texts differ at most in the last digit of decimal numbers."""
    if DECIMAL.split(pinned) != DECIMAL.split(found):
        return False
    for a, b in zip(DECIMAL.findall(pinned), DECIMAL.findall(found), strict=True):
        step = 10.0 ** -min(len(re.sub(r"e.*", "", n).split(".")[1]) for n in (a, b))
        scale = 10.0 ** max(int(n.partition("e")[2] or 0) for n in (a, b))
        if not math.isclose(float(a), float(b), rel_tol=RELATIVE, abs_tol=1.01 * step * scale):
            return False
    return True


def as_text(value: object, indent: int = 0) -> str:
    """JSON with what fits on a line on a line, and rows of plain values too."""
    flat = json.dumps(value, ensure_ascii=False)
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    plain = not any(isinstance(part, (dict, list)) or len(str(part)) > 40 for part in parts)
    if len(flat) + indent <= WIDTH or plain:
        return flat
    inner = " " * (indent + 1)
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + as_text(part, indent + 1) for part in value) + f"\n{' ' * indent}]"
    named = [f"{inner}{json.dumps(key, ensure_ascii=False)}: {as_text(part, indent + 1)}" for key, part in value.items()]
    return "{\n" + ",\n".join(named) + f"\n{' ' * indent}}}"


# ---- what is found -----------------------------------------------------------------------------------------------------


def without(value: object, *names: str) -> object:
    """JSON without the keys of these names, however deep."""
    if isinstance(value, dict):
        return {key: without(part, *names) for key, part in value.items() if key not in names}
    return [without(part, *names) for part in value] if isinstance(value, list) else value


def read_table(path: Path) -> list[list[object]]:
    """The rows of a CSV, decimal numbers as such."""
    with open(path, newline="", encoding="utf-8") as file:
        return [[as_number(cell) for cell in row] for row in csv.reader(file)]


def as_number(text: str) -> object:
    return float(text) if DECIMAL.fullmatch(text) else text


def file_digests(folder: Path) -> dict[str, str]:
    """A hash of each file below a folder, by its relative name."""
    files = sorted(f for f in folder.rglob("*") if f.is_file())
    return {f.relative_to(folder).as_posix(): short_digest(f.read_bytes()) for f in files}


def short_digest(content: bytes | str) -> str:
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()[:12]


def names_below(folder: Path) -> list[str]:
    """The sorted names in a folder, without hidden ones."""
    return sorted(f.name for f in folder.iterdir() if not f.name.startswith(".")) if folder.is_dir() else []
