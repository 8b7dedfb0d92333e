"""``python -m distilcal`` is the command line."""

from distilcal.cli import main

main()
