"""Runs side by side: student against the same student alone, against its teacher, in and out of domain, with size and speed.

Everything is read from a `distilcal.runs.RunSummary`: `terminal.show_runs` prints it, `page.write_runs_page` draws it.
"""
