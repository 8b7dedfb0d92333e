"""Studies: methods × tasks × seeds, each distinct stage trained once, the tables of a paper filled.

``schema`` reads a study's file and ``validation`` checks it, ``expand`` turns it into a graph of jobs, ``job`` runs one of
them, ``executors`` say where and ``scheduler`` in which order; ``analysis`` and ``figures`` gather tables, claims and charts.
``run`` does all of it. ``sweep`` searches the settings of one recipe.
"""
