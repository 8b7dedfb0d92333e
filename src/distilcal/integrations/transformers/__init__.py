"""distilcal inside Hugging Face's Trainer.

`DynamicsCallback` records training dynamics.
"""

from distilcal.integrations.transformers.callback import DynamicsCallback

__all__ = ["DynamicsCallback"]
