"""Shows a ModelEvaluation: on the terminal, or as one self-contained page. Reads results, computes nothing."""
