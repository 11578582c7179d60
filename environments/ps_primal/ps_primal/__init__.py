"""ps_primal: paired-associate recall in one turn. See `paradigm` for what is measured and how it is scored.

Loads one side only: `load_environment` for verifiers up to 0.3, the names in `__all__` for verifiers v1.
"""

from typing import Any

__all__ = ("DirectHarness", "LocalEnv", "PsPrimalTaskset")


def load_environment(**arguments: Any) -> Any:
    from ps_primal.legacy import load_environment as load

    return load(**arguments)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from ps_primal import taskset

        return getattr(taskset, name)
    raise AttributeError(f"module 'ps_primal' has no attribute {name!r}")
