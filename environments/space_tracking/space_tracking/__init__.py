"""space_tracking: which mental space a model's next token is in. See `paradigm` for what is measured and how.

Loads one side only: `load_environment` for verifiers up to 0.3, the names in `__all__` for verifiers v1.
"""

from typing import Any

__all__ = ("LocalEnv", "ReadoutHarness", "SpaceTrackingTaskset")


def load_environment(**arguments: Any) -> Any:
    from space_tracking.legacy import load_environment as load

    return load(**arguments)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from space_tracking import taskset

        return getattr(taskset, name)
    raise AttributeError(f"module 'space_tracking' has no attribute {name!r}")
