"""Which failures of a start are the user's to mend, and so get one line rather than a traceback."""

from engine.errors import EngineFailed
from models.errors import ModelFileError
from server.settings import SettingsError


def user_message(error: Exception) -> str | None:
    """The line for `error`; None if it is a bug."""
    if isinstance(error, EngineFailed | ModelFileError | OSError | SettingsError):
        return " ".join(str(error).split())
    return None
