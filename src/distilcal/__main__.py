"""The command ``distilcal``, also as ``python -m distilcal``."""

import atexit

from distilcal.cli.signals import end_on_signals, hold_signals


def main() -> None:
    """Run the command line. Signals are handled first: the imports are most of the time of a short command."""
    end_on_signals()
    atexit.register(hold_signals)  # the first to be registered is the last to be called
    from distilcal.cli.main import main as run

    try:
        run()
    except SystemExit as ended:
        end_on_signals(ended.code if isinstance(ended.code, int) else 0)
        raise


if __name__ == "__main__":
    main()
