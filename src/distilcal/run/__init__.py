"""Carrying out a recipe: stages trained once and kept by content, a folder of results, a report."""

from distilcal.run.runs import Plan, plan, run_recipe
from distilcal.run.using import predict_file

__all__ = ["Plan", "plan", "predict_file", "run_recipe"]
