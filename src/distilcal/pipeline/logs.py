"""Loggers that speak once, however many processes train together."""

from __future__ import annotations

import logging
import os


def main_process_logger(name: str) -> logging.Logger:
    """Return the logger of a module; its records are dropped in every process but the first.

    Parameters
    ----------
    name : str
        The module's ``__name__``.

    Returns
    -------
    logging.Logger
        A child of the "distilcal" logger, silent until the application configures logging.

    Examples
    --------
    >>> main_process_logger("distilcal.pipeline.run").name
    'distilcal.pipeline.run'
    """
    logger = logging.getLogger(name)
    logger.addFilter(_is_from_main_process)
    return logger


def _is_from_main_process(record: logging.LogRecord) -> bool:
    return os.environ.get("RANK", "0") == "0"
