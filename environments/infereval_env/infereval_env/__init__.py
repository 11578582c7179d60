"""infereval_env: whether a model endorses the inferences that a domain's experts endorse.

The instrument in plain Python: `formats` (files), `elicitation` and `elicit` (asking), `readings` (what measurement
sees of a run), `measures`, `guard`, `retest`, `equivalence`, `monotonicity`, `structure`, `audit`, and `commands`
(`mindscope infereval …`). The environment is `paradigm`, and loads one side only: `load_environment` for verifiers up
to 0.3, the names in `__all__` for verifiers v1.
"""

from typing import Any

__all__ = ("InferevalEnv", "InferevalTaskset", "LabelHarness")


def load_environment(**arguments: Any) -> Any:
    from infereval_env.legacy import load_environment as load

    return load(**arguments)


def __getattr__(name: str) -> Any:
    if name in __all__:
        from infereval_env import taskset

        return getattr(taskset, name)
    raise AttributeError(f"module 'infereval_env' has no attribute {name!r}")
