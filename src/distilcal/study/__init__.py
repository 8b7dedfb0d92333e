"""Studies: methods × tasks × seeds, each distinct stage trained once, the tables of a paper filled.

``settings`` reads a study's file, ``graph`` expands it to jobs, ``work`` carries one job out, ``executors`` say where,
``schedule`` in which order, ``results`` gathers figures, tables and claims. ``sweep`` searches the settings of one recipe.
"""
