"""Pages from templates: self-contained, with all text escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilcal.io.atomic import atomic_write
from distilcal.report.formatting import format_number, format_p_value, format_percent
from distilcal.selective import in_percent


def render_template(template: str, **values: Any) -> str:
    """Return a template of `report/templates` with its values filled in; text is escaped, a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("distilcal.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=format_number, percent=format_percent, p_text=format_p_value, in_percent=in_percent)
    text: str = environment.get_template(template).render(**values)
    return text


def write_text(text: str, path: Path) -> None:
    """Write a page as UTF-8; what cannot be encoded is replaced, and a file is whole or not there."""
    content = text.encode("utf-8", "replace")
    with atomic_write(path) as file:
        file.write(content)
