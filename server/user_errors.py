"""Which failures of a start are the user's to mend, and so get one line rather than a traceback."""

from engine.errors import EngineFailed, LoadError
from server.settings import SettingsError


def user_message(error: Exception) -> str | None:
    """The line for `error`; None if it is a bug."""
    mendable = EngineFailed | LoadError | MemoryError | OSError | SettingsError
    if isinstance(error, mendable):
        return " ".join(str(error).split()) or type(error).__name__
    return None
