"""The error of a launch that cannot be."""


class LaunchError(ValueError):
    """The job cannot be launched as asked; the message gives the cause and the remedy."""
