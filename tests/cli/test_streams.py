"""Standard streams that are closed, or that nobody reads, change neither the work nor its exit code."""

import os
import subprocess
import sys

import click
import pytest

from distilcal.cli.main import Commands

# The command line, and then the descriptor of the file that it would open next.
NEXT_DESCRIPTOR = """
import os, runpy, sys
sys.argv = ["distilcal", "--version"]
try:
    runpy.run_module("distilcal", run_name="__main__")
except SystemExit:
    pass
opened = os.open(sys.prefix, os.O_RDONLY)
open({path!r}, "w").write(str(opened))
"""


def run_unread(*arguments):
    """The exit code and standard error of a command whose reader was gone before it began."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "distilcal", *arguments]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["eval", "--help"], ["data", "show", "--help"]], ids=" ".join)
def test_help_that_nobody_reads_is_no_failure(arguments):
    assert run_unread(*arguments) == (0, "")


def test_another_pipe_that_breaks_is_said(capfd, monkeypatch):
    @click.group(cls=Commands)
    def group():
        pass

    @group.command()
    def work():
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"job")

    with pytest.raises(SystemExit) as ended:
        group(["work"])
    assert (ended.value.code, capfd.readouterr().err.count("\n")) == (2, 1)
    monkeypatch.setattr("distilcal.cli.main.is_output_read", lambda: False)  # work that is not done is no success then, either
    with pytest.raises(SystemExit) as ended:
        group(["work"])
    assert ended.value.code == 2


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_is_opened_in_place_of_a_stream_that_was_closed(closed, tmp_path):
    """What a library in C prints would be written into it."""
    path = tmp_path / "opened"
    program = NEXT_DESCRIPTOR.format(path=str(path))
    subprocess.run(["bash", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, program], capture_output=True, check=True)
    assert int(path.read_text()) > 2
