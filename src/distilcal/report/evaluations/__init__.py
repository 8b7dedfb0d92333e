"""A `ModelEvaluation` in sentences, on the terminal, as JSON values and as a page."""
