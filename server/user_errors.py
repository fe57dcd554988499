"""Which failures of a start are the user's to mend, and so get one line rather than a traceback."""

from models.errors import ModelError

from engine.errors import EngineFailed


class SettingsError(Exception):
    """Settings that contradict each other."""


def user_message(error: Exception) -> str | None:
    """The line for `error`; None if it is a bug."""
    if isinstance(error, EngineFailed | ModelError | OSError | SettingsError):
        return " ".join(str(error).split())
    return None
