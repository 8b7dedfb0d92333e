"""distilcal as scikit-learn estimators.

`DistilledClassifier` distils a teacher into a calibrated student, and `CalibratedClassifier` calibrates any classifier with our
methods. ``EXPECTED_FAILED_CHECKS`` names the checks of scikit-learn that do not apply to the first, with the reason.
"""

from distilcal.errors import MissingDependencyError

try:
    import sklearn  # noqa: F401
except ImportError:
    raise MissingDependencyError("scikit-learn is not installed", remedy="pip install 'distilcal[sklearn]'") from None

from distilcal.integrations.sklearn.calibrated import CalibratedClassifier
from distilcal.integrations.sklearn.distilled import EXPECTED_FAILED_CHECKS, DistilledClassifier

__all__ = ["EXPECTED_FAILED_CHECKS", "CalibratedClassifier", "DistilledClassifier"]
