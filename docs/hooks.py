"""What the site takes from the rest of the repository: mkdocs calls these functions while it builds.

Pages that stand elsewhere (results, CONTRIBUTING, the changelog) are shown where ``PLACES`` says, and the command line and
the example recipes are described from the package itself, so that none of them can go stale. Links between files of the
repository become links between pages; one that leads nowhere fails the strict build.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "src" / "distilcal" / "config" / "recipes"
PLACES = {  # file of the repository → page of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contribute/index.md",
    "CHANGELOG.md": "contribute/changelog.md",
    "results/README.md": "results/index.md",
    "benchmarks/README.md": "results/speed.md",
    "examples/llm_teacher.md": "guides/llm_teacher.md",
    **{f"results/{folder.name}/results.md": f"results/{folder.name}.md" for folder in sorted((ROOT / "results").glob("*/"))},
}
COPIED = ("results/*/figures/*.svg", "results/*/tables/*.csv", "results/*/tables/*.tex", "examples/*.py")
LINK = re.compile(r"\]\(([^)\s#:]+)(#[^)\s]*)?\)")
CLAIM = re.compile(r"^\S \*\*(holds|fails|undecided)\*\*: (.*)\n\n((?:\|.*\n)+)", re.M)
BOXES = {"holds": "success", "fails": "failure", "undecided": "question"}
ELSEWHERE = re.compile(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"https?:|<link\b[^>]*\bhref=\"https?:[^>]*\.css")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that do not stand in docs/."""
    for source, place in PLACES.items():
        if place != "index.md":
            files.append(File.generated(config, place, content=_included(ROOT / source)))
    for pattern in COPIED:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put in what the package says about itself, and turn links between files into links between pages of the site."""
    for marker, describe in WRITTEN.items():
        if marker in markdown:
            markdown = markdown.replace(marker, describe())
    places = {place: source for source, place in PLACES.items() if place != "index.md"}
    here = places.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def rewrite(match: re.Match[str]) -> str:
        target, anchor = match.group(1), match.group(2) or ""
        source = os.path.normpath(PurePosixPath(here).parent / target)
        place, table = _place_of(source)
        if place is None:
            return match.group(0)
        relative = os.path.relpath(place, PurePosixPath(page.file.src_uri).parent)
        return f"]({relative}{anchor or table})"

    return LINK.sub(rewrite, markdown)


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load a script, a style or a picture from another server."""
    found = ELSEWHERE.search(output)
    if found:
        raise PluginError(f"{page.file.src_uri} loads from elsewhere: {found.group(0)}")
    return output


def _place_of(source: str) -> tuple[str | None, str]:
    """Return the page (and the anchor on it) that shows a file of the repository, or None."""
    if source in PLACES:
        return PLACES[source], ""
    table = re.fullmatch(r"results/([\w-]+)/tables/([\w-]+)\.md", source)
    if table:
        return f"results/{table.group(1)}.md", f"#{table.group(2)}"
    if source.startswith("docs/"):
        return source.removeprefix("docs/"), ""
    if any(PurePosixPath(source).match(pattern) for pattern in COPIED):
        return source, ""
    return None, ""


def _included(path: Path) -> str:
    """Return the text of a page that stands elsewhere.

    Pages of results get an anchor for each table, fold the comparisons behind a claim, and come late in a search.
    """
    text = path.read_text(encoding="utf-8")
    if path.name != "results.md":
        return text
    for table in sorted(path.parent.glob("tables/*.md")):
        title = table.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
        text = text.replace(f"### {title}\n", f"### {title} {{ #{table.stem} }}\n", 1)
    text = re.sub(r", \[md\]\(tables/[\w-]+\.md\)", "", text)
    text = CLAIM.sub(_folded_claim, text)
    return f"---\nsearch:\n  boost: 0.2\n---\n{text}"


def _folded_claim(match: re.Match[str]) -> str:
    """Turn a claim and the table of its comparisons into a box that opens."""
    verdict, claim, table = match.groups()
    rows = "\n".join(f"    {row}" for row in table.splitlines())
    title = f"{verdict}: {claim}".replace('"', "”")
    return f'??? {BOXES[verdict]} "{title}"\n\n{rows}\n'


def _example_recipes() -> str:
    """Describe every example recipe: the sentence on its first line, and the file itself, folded."""
    lines: list[str] = []
    for path in sorted(RECIPES.glob("*.toml")):
        text = path.read_text(encoding="utf-8")
        sentence = text.split("\n", 1)[0].removeprefix("# ").rstrip(".")
        lines += [f"## {path.stem}", "", f"{sentence}.", "", f'??? example "{path.name}"', "", "    ```toml"]
        lines += [f"    {line}".rstrip() for line in text.splitlines()]
        lines += ["    ```", ""]
    return "\n".join(lines)


def _command_line() -> str:
    """Describe every command as click knows it."""
    from distilcal.cli.main import main

    lines: list[str] = []
    for name, command in sorted(main.commands.items()):
        lines += _command(f"distilcal {name}", command)
        if isinstance(command, click.Group):
            for sub, subcommand in sorted(command.commands.items()):
                lines += _command(f"distilcal {name} {sub}", subcommand)
    return "\n".join(lines)


def _command(name: str, command: click.Command) -> list[str]:
    """Describe one command: usage, help, a table of its options."""
    context = click.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    lines = [f"## {name}", "", "```text", usage, "```", "", *_help(command), ""]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        lines += ["| option | what it does |", "|---|---|"]
        lines += [f"| {_spelling(option, context)} | {_meaning(option, context)} |" for option in options]
        lines.append("")
    return lines


def _help(command: click.Command) -> list[str]:
    """Return the help of a command as Markdown; paragraphs that click leaves as they are become code."""
    paragraphs = (command.help or "").replace("\f", "").split("\n\n")
    lines: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith("\b"):
            lines += ["```text", paragraph.removeprefix("\b").strip("\n"), "```", ""]
        else:
            lines += [" ".join(_escaped(paragraph).split()), ""]
    return lines


def _spelling(option: click.Option, context: click.Context) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    metavar = "" if option.is_flag or option.count else " " + option.make_metavar(context)
    return f"`{names}{metavar}`".replace("|", "\\|")


def _meaning(option: click.Option, context: click.Context) -> str:
    record: dict[str, Any] = option.get_help_extra(context)
    text = _escaped(option.help or "").strip()
    notes = []
    if option.multiple and "more than once" not in text:
        notes.append("may be given more than once")
    if record.get("default"):
        notes.append(f"default {record['default']}")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "\\|").replace("*", "\\*")


def _import_order() -> str:
    """Show the order of imports that the test of the architecture keeps."""
    tree = ast.parse((ROOT / "tests" / "test_architecture.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ORDER":
            return " → ".join(f"`{name}`" for name in ast.literal_eval(node.value))
    raise PluginError("tests/test_architecture.py has no list ORDER")


WRITTEN = {
    "<!-- written by the build: commands -->": _command_line,
    "<!-- written by the build: recipes -->": _example_recipes,
    "<!-- written by the build: import order -->": _import_order,
}
