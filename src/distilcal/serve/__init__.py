"""A student as an HTTP service: predictions with calibrated confidences and hand-over flags, and a page to try it.

``create_app`` builds the application for any ASGI server, ``serve`` runs it with uvicorn as ``distilcal serve`` does. Both need
the packages of the extra ``serve``; nothing here imports torch.
"""

from distilcal.errors import MissingDependencyError

try:
    from distilcal.serve.app import create_app
    from distilcal.serve.server import serve
except ModuleNotFoundError as error:
    raise MissingDependencyError(f"serving needs the package {error.name}", remedy="pip install 'distilcal[serve]'") from None

__all__ = ["create_app", "serve"]
