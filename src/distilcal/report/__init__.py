"""Shows results: on the terminal, as pages, tables and figures. Reads what was measured and computes nothing.

A package for each subject (`evaluations`, `runs`, `maps`, `studies`), the charts of the pages in `charts`, and in `figures` the
figures for papers, which matplotlib draws.
"""
