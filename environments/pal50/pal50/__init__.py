"""pal50: paired-associate learning in one conversation per participant. See `paradigm` for what is measured.

Loads one side only: `load_environment` for verifiers up to 0.3, the names in `__all__` for verifiers v1.
"""

from typing import Any

__all__ = ("Pal50Env", "Pal50Taskset", "ScriptedHarness")


def load_environment(**arguments: Any) -> Any:
    from pal50.legacy import load_environment as load

    return load(**arguments)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from pal50 import taskset

        return getattr(taskset, name)
    raise AttributeError(f"module 'pal50' has no attribute {name!r}")
