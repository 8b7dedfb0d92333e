"""Networks that can be trained and distilled. So far those for small images."""

from distilcal.models.cifar import NETWORKS, Network, network, padded_resnet_state

__all__ = ["NETWORKS", "Network", "network", "padded_resnet_state"]
