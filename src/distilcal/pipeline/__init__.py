"""Running a recipe: stages that are trained once and kept by content, a folder of results, a report."""

from distilcal.pipeline.run import Plan, plan, run_recipe

__all__ = ["Plan", "plan", "run_recipe"]
