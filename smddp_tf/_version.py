"""The version; the native library must have the same one."""

__version__ = "0.2.0"
