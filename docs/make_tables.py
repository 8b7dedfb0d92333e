"""Write the tables of settings in the documentation from the schema. Run it after a change of a setting; a test checks them.

A table stands between ``<!-- settings: TrainSettings -->`` and ``<!-- end of settings -->``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from distilcal.config import schema as recipes
from distilcal.config.tables import settings_table
from distilcal.study import schema as studies

DOCS = Path(__file__).parent
BLOCK = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end of settings -->)", re.DOTALL)


def with_tables(text: str) -> str:
    """Return a page with its tables of settings as the schema has them now."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{settings_table(_model(match[2]))}\n\n{match[3]}", text)


def _model(name: str) -> type[recipes.Settings]:
    model: type[recipes.Settings] = getattr(recipes, name, None) or getattr(studies, name)
    return model


def main(check: bool) -> int:
    """Write the tables, or with ``check`` only name the pages whose tables are stale."""
    stale = []
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        new = with_tables(text)
        if new != text:
            stale.append(page)
            if not check:
                page.write_text(new, encoding="utf-8")
    for page in stale:
        print(f"{page.relative_to(DOCS)}: {'stale, run python docs/make_tables.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
