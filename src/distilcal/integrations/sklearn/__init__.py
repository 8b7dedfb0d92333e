"""distilcal as scikit-learn estimators.

`CalibratedClassifier` calibrates any classifier with our methods.
"""

from distilcal.errors import MissingDependencyError

try:
    import sklearn  # noqa: F401
except ImportError:
    raise MissingDependencyError("scikit-learn is not installed", remedy="pip install 'distilcal[sklearn]'") from None

from distilcal.integrations.sklearn.calibrated import CalibratedClassifier

__all__ = ["CalibratedClassifier"]
