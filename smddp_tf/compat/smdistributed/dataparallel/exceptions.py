"""Exceptions of smdistributed.dataparallel."""


class SMDDPError(RuntimeError):
    """Misuse that smdistributed.dataparallel rejects."""


class SMDDPInitError(SMDDPError):
    """init() was called twice."""
