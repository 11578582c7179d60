"""Finds and reads the stimuli: `data/` of a checkout, or the copy inside an installed wheel.

    path = data_path("pal50/pairs.jsonl")
    rows = read_jsonl(path)
    sha256(path)

Nothing here depends on the current directory. Files are read strictly: UTF-8 with or without a byte order
mark, any line ending, blank lines skipped; NaN, Infinity, numbers too large for a float and duplicate keys
are faults, and one message holds every fault of a file.
"""

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from mindscope.errors import MindscopeError
from mindscope.validation import Fault, Model, check, listing, shown

_PACKAGE = Path(__file__).parent


class StimulusError(MindscopeError):
    """A data file that is missing, unreadable or not what it should be."""


def data_path(name: str) -> Path:
    """The absolute path of `data/<name>`, a file or a folder.

    Raises `StimulusError` when it is in neither place, or when `name` would leave the data folder.
    """
    roots = [root for root in (_PACKAGE / "_data", _PACKAGE.parents[1] / "data") if root.is_dir()]
    for root in roots:
        path = (root / name).resolve()
        if path.exists() and path.is_relative_to(root.resolve()):
            return path
    places = " or ".join(str(root) for root in roots) or "any data folder (the installation is incomplete)"
    raise StimulusError(f"There is no data file {name!r} in {places}.")


def read_jsonl(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a JSONL file, one object a line; raises `StimulusError` that names each faulty line."""
    return [row for _, row in _numbered_rows(Path(path))]


def read_records(path: Path | str, model: type[Model]) -> list[Model]:
    """The rows of a JSONL file as `model`; raises `StimulusError` with every field that does not fit."""
    path = Path(path)
    records: list[Model] = []
    faults: list[Fault] = []
    for number, row in _numbered_rows(path):
        record, found = check(model, row, where=f"{path.name}:{number}")
        faults += found
        if record is not None:
            records.append(record)
    if faults:
        raise StimulusError(listing(str(path), faults))
    return records


def read_text(path: Path) -> str:
    """A UTF-8 file without its byte order mark, line endings as `\\n`; raises `StimulusError`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise StimulusError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8.") from None
    except OSError as error:
        raise StimulusError(f"Cannot read {path}: {error.strerror}.") from None


def loads(text: str) -> Any:
    """`json.loads` for JSON alone: raises ValueError for NaN, Infinity, overflow and duplicate keys."""
    try:
        return json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant, parse_float=_finite_float
        )
    except RecursionError:
        raise ValueError("nested too deeply") from None


def sha256(path: Path | str) -> str:
    """Hexadecimal SHA-256 of the file's bytes, as `sha256sum` prints it."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbered_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    rows: list[tuple[int, dict[str, Any]]] = []
    faults: list[Fault | str] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = loads(line)
        except ValueError as error:
            faults.append(f"{path.name}:{number}: {error}")
            continue
        if isinstance(row, dict):
            rows.append((number, row))
        else:
            faults.append(Fault(f"{path.name}:{number}", shown(row), "one JSON object a line"))
    if faults:
        raise StimulusError(listing(str(path), faults))
    return rows


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise ValueError(f"duplicate keys: {', '.join(repeated)}")
    return dict(pairs)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _finite_float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large for a number")
    return value
