"""What functions raise, for the ranks_*.py here."""


def error_of(function) -> tuple:
    """What it raises: the class's name and the text."""
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return "", "nothing was raised"
