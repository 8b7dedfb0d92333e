"""Networks that can be trained and distilled. So far those for small images, and linear ones for the theory."""

from distilcal.models.cifar import NETWORKS, Network, network, padded_resnet_state
from distilcal.models.linear import exact_student, linear_kd_losses, theorem1_student

__all__ = ["NETWORKS", "Network", "exact_student", "linear_kd_losses", "network", "padded_resnet_state", "theorem1_student"]
