"""The version, equal to that of the native library."""

__version__ = "0.1.0"
