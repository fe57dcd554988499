"""Runtimes by name, for callers that choose one by a string."""

from collections.abc import Callable
from importlib import import_module

from engine.runtimes.base import Runtime

Factory = Callable[[], Runtime]


def _named(module: str, name: str) -> Factory:
    """A runtime's class, whose module is imported when it is first used: it may need a compiler or a device."""

    def make() -> Runtime:
        runtime: Runtime = getattr(import_module(module), name)()
        return runtime

    return make


_BACKENDS: dict[str, Factory] = {
    "native": _named("engine.runtimes.native.runtime", "NativeRuntime"),
    "reference": _named("engine.runtimes.reference", "ReferenceRuntime"),
}


def register_backend(name: str, factory: Factory) -> None:
    """Make a runtime known under a name that no other has; each compilation calls `factory` for one of its own."""
    if name in _BACKENDS:
        raise ValueError(f"there is already a backend named {name!r}")
    _BACKENDS[name] = factory


def backend_names() -> list[str]:
    return sorted(_BACKENDS)


def make_runtime(name: str) -> Runtime:
    """A new runtime; raises `ValueError` for a name that is not registered."""
    if name not in _BACKENDS:
        raise ValueError(f"no backend is named {name!r}; there are {', '.join(backend_names())}")
    return _BACKENDS[name]()
