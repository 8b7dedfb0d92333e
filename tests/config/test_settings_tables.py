"""Tables of settings in the documentation are those of the schema."""

import subprocess
import sys
from pathlib import Path

from distilcal.config import schema as recipes
from distilcal.config.base import FiniteSettings, Settings
from distilcal.config.tables import settings_table
from distilcal.study import schema as studies

DOCS = Path(__file__).parents[2] / "docs"


def test_tables_in_the_documentation_are_up_to_date():
    done = subprocess.run([sys.executable, DOCS / "make_tables.py", "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_table_is_written_anew(tmp_path):
    (tmp_path / "make_tables.py").write_text((DOCS / "make_tables.py").read_text(encoding="utf-8"), encoding="utf-8")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- settings: TermSettings -->\nold\n<!-- end of settings -->\nafter\n")
    check = [sys.executable, tmp_path / "make_tables.py", "--check"]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 1
    assert "old" in page.read_text()
    subprocess.run(check[:2], check=True, capture_output=True)
    table = settings_table(recipes.TermSettings)
    assert page.read_text() == f"before\n<!-- settings: TermSettings -->\n\n{table}\n\n<!-- end of settings -->\nafter\n"
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0


def test_every_settings_class_has_its_table():
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for module in (recipes, studies):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, Settings) and value not in (Settings, FiniteSettings):
                assert f"<!-- settings: {name} -->" in pages, name


def test_values_and_defaults_are_shown_as_toml():
    table = settings_table(recipes.ModelSettings)
    assert "| `dropout` | number ≥ 0, < 1 |  | Probability of dropout" in table
    assert '| `head` | `auto`, `new`, `keep` | `"auto"` |' in table
    assert "| `mean` | list | `[0.4914, 0.4822, 0.4465]` |" in table
    assert "| `augment` | true or false | `true` |" in table
    assert r"(u, v, \|u - v\|, u·v)" in table
    assert '| `regions` | list | `["easy", "ambiguous"]` |' in settings_table(recipes.ViewSettings)
    assert "`scale`" not in settings_table(studies.Study)
