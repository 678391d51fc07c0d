"""Which gradients are reduced together, and in which order. Standard library only."""
