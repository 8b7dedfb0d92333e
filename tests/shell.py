"""The command line, called in this process."""

from click.testing import CliRunner

from distilcal.cli.main import main


def command(*arguments, code=0):
    """What a command printed; its exit code must be this, and bad input one line that says so."""
    done = CliRunner().invoke(main, [str(a) for a in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output + done.stderr
    if code == 2:
        assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    return done
