"""An environment whose scoring fails on some items, on both verifiers generations."""

from typing import Any

__all__ = ("DirectHarness", "FaultyTaskset", "LocalEnv")


def load_environment(**arguments: Any) -> Any:
    from faulty_env.legacy import load_environment as load

    return load(**arguments)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from faulty_env import taskset

        return getattr(taskset, name)
    raise AttributeError(f"module 'faulty_env' has no attribute {name!r}")
