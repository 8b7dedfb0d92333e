"""Pages from templates: self-contained, with all text escaped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distilcal.io.atomic import atomic_write
from distilcal.report.formatting import format_number, format_p_value, format_percent
from distilcal.selective import in_percent


def render_template(template: str, **values: Any) -> str:
    """Return a template of ``report/templates`` with its values filled in and all text escaped.

    Parameters
    ----------
    template : str
        File name of the template.
    **values : Any
        Values by the names that the template uses.

    Returns
    -------
    str
        The rendered text.

    Raises
    ------
    ImportError
        If jinja2 is not installed.
    jinja2.UndefinedError
        If the template uses a value that is missing.
    jinja2.TemplateNotFound
        If there is no such template.
    """
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
    """Write text as a UTF-8 file, atomically.

    Parameters
    ----------
    text : str
        The text; what UTF-8 cannot encode becomes a question mark.
    path : Path
        The file to write; an existing one is replaced.

    Raises
    ------
    InputError
        If no file can be written there.
    """
    content = text.encode("utf-8", "replace")
    with atomic_write(path) as file:
        file.write(content)
