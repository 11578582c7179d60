"""What several commands read from their arguments: an environment's modules, and JSON objects."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from mindscope.errors import MindscopeError
from mindscope.stimuli import loads


def environment_name(env: str) -> str:
    """The import name of an environment given as `ps_primal` or `ps-primal`; raises MindscopeError if not installed."""
    name = env.replace("-", "_")
    if not name.isidentifier() or find_spec(name) is None:
        raise MindscopeError(f"the environment {name!r} is not installed; install its package, then try again")
    return name


def environment_module(env: str, module: str, command: str) -> ModuleType:
    """The module of an environment that a command needs; raises MindscopeError where there is none."""
    name = environment_name(env)
    if find_spec(f"{name}.{module}") is None:
        raise MindscopeError(f"`mindscope {command}` does not apply to {name}: it has no module {name}.{module}")
    return import_module(f"{name}.{module}")


def json_object(option: str, text: str) -> dict[str, Any]:
    """The JSON object given to `option`; raises MindscopeError that shows the right form."""
    try:
        value = loads(text)
    except ValueError as error:
        raise MindscopeError(f"{option} is not JSON ({error}); write it as '{{\"name\": value}}'") from None
    if not isinstance(value, dict):
        raise MindscopeError(f"{option} is a JSON {type(value).__name__}; it must be an object, '{{\"name\": value}}'")
    return value
