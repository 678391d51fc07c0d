"""Gradient reduction in buckets, for tapes and optimizers, and the check that ranks stay equal."""
