"""Assigns gradients to buckets and orders them. Uses the standard library only."""
