"""Choosing a student within a given time: candidates, successive halving on dev, and one run with the chosen one.

`candidates` lists what fits the situation, `halving` is the search itself and knows neither models nor data, `ledger` keeps
the time and what was found on disk, `timing` measures what training costs, and `search` puts them together.
"""

from distilcal.pipeline.budget.candidates import Candidate, Situation, build_candidates, choosable_layers
from distilcal.pipeline.budget.duration import format_duration, parse_duration
from distilcal.pipeline.budget.search import BudgetPlan, distill_within, plan_within

__all__ = [
    "BudgetPlan",
    "Candidate",
    "Situation",
    "build_candidates",
    "choosable_layers",
    "distill_within",
    "format_duration",
    "parse_duration",
    "plan_within",
]
