"""The version of this program."""

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """The installed distribution's version; a checkout that is not installed has none."""
    try:
        return version("egglm")
    except PackageNotFoundError:
        return "0+source"
