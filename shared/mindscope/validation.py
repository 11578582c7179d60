"""Checks data from outside against a pydantic model and says every fault of it at once, in sentences.

    pair, faults = check(WordPair, row, where="pairs.jsonl:7")
    settings = parse(Settings, {"order": "random"}, subject="The arguments of ps_primal")

A fault names the place, what was found there and what is allowed. What is allowed is, in this order, the text
of the validator's ValueError, the field's `description`, or pydantic's own wording.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from mindscope.errors import MindscopeError

Model = TypeVar("Model", bound=BaseModel)

_LONGEST_EXCERPT = 60


class Fault(NamedTuple):
    where: str
    found: str
    allowed: str

    def __str__(self) -> str:
        return f"{self.where}: found {self.found}; allowed: {self.allowed}"


def check(model: type[Model], data: object, where: str = "") -> tuple[Model | None, list[Fault]]:
    """The model built from `data` and no faults, or None and every fault, each prefixed with `where`."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        return None, [_fault(model, detail, where) for detail in error.errors(include_url=False)]


def parse(model: type[Model], data: Mapping[str, object], subject: str) -> Model:
    """The model built from `data`; raises `MindscopeError` that lists every fault under `subject`."""
    value, faults = check(model, data)
    if value is None:
        raise MindscopeError(listing(subject, faults))
    return value


def listing(subject: str, faults: Sequence[object]) -> str:
    """One message for many faults, one a line."""
    count = f"{len(faults)} fault{'s' if len(faults) > 1 else ''}"
    return "\n".join([f"{subject}: {count}.", *(f"  {fault}" for fault in faults)])


def shown(value: object) -> str:
    """A value as it may stand in a message: quoted as Python would, cut when long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_EXCERPT else f"{text[: _LONGEST_EXCERPT - 1]}…"


def _fault(model: type[BaseModel], detail: ErrorDetails, where: str) -> Fault:
    path = [str(part) for part in detail["loc"]]
    field = model.model_fields.get(path[0]) if path else None
    found = "nothing" if detail["type"] == "missing" else shown(detail["input"])
    if "error" in detail.get("ctx", {}):
        allowed = str(detail["ctx"]["error"])
    elif detail["type"] == "extra_forbidden":
        allowed = f"no such field, only {', '.join(model.model_fields)}"
    elif field is not None and field.description is not None:
        allowed = field.description
    elif detail["type"] == "missing":
        allowed = "a value; the field is required"
    else:
        allowed = detail["msg"].removeprefix("Input should be ")
    return Fault(".".join(part for part in (where, *path) if part), found, allowed)
