"""Exceptions of smdistributed.dataparallel."""


class SMDDPError(RuntimeError):
    """Misuse that this module is strict about."""


class SMDDPInitError(SMDDPError):
    """init() was called twice."""
