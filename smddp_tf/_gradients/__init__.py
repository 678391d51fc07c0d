"""Gradients: reduced in buckets, from a tape or an optimizer, and what must be equal afterwards."""
