"""``python -m distilcal`` is the command line."""

from distilcal.cli.main import main

main()
