"""Studies: methods × tasks × seeds, each distinct stage trained once, the tables of a paper filled.

``settings`` reads a study's file and ``checks`` looks it over, ``graph`` expands it to jobs, ``work`` carries one job out,
``executors`` say where, ``schedule`` in which order; ``findings``, ``results`` and ``pictures`` gather figures, tables, claims
and charts. ``running`` does all of it. ``sweep`` searches the settings of one recipe.
"""
