"""Show metrics with the signature that users call; mkdocstrings reads the source, where ``@metric`` has not run yet."""

from __future__ import annotations

from typing import Any

import griffe

CALLED_WITH = {"metric": ("probs", "labels"), "human_metric": ("probs", "label_probs")}


class CalledSignatures(griffe.Extension):
    """Replace the parameter ``rows`` of a decorated metric by the arrays that the decorator asks for."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        """Change one function, if it is a metric."""
        for decorator in func.decorators:
            names = CALLED_WITH.get(str(decorator.value))
            if names:
                positional = griffe.ParameterKind.positional_or_keyword
                arrays = [griffe.Parameter(name, annotation="ArrayLike", kind=positional) for name in names]
                func.parameters = griffe.Parameters(*arrays, *list(func.parameters)[1:])
                func.returns = "float"
