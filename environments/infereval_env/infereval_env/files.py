"""Reading and writing benchmarks and evaluations.

benchmark = read_benchmark(Path("benchmark.json"))     # MindscopeError lists every fault of the file
eta = read_evaluation(Path("eta.json"))
write_evaluation(eta, Path("out.json"), compat=True)   # readable by infereval 0.17
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mindscope.errors import MindscopeError
from mindscope.records import write_whole
from mindscope.stimuli import loads, read_text
from mindscope.validation import Fault, listing, shown
from pydantic import BaseModel, ValidationError

from infereval_env.checks import benchmark_faults, evaluation_faults, survivors
from infereval_env.formats import Benchmark, Evaluation, EvaluationItem, Item, dump

Part = TypeVar("Part", bound=BaseModel)


def read_benchmark(path: Path) -> Benchmark:
    """The benchmark in `path`. Raises MindscopeError naming every fault: its place, what was found, what may
    be."""
    text, data = read_json(path)
    benchmark, faults = _validated(Benchmark, text, data)
    items = list(enumerate(benchmark.items)) if benchmark else survivors(Item, data, "items")
    faults += benchmark_faults(data, items)
    if benchmark is None or faults:
        raise faults_error(str(path), faults)
    return benchmark


def read_evaluation(path: Path) -> Evaluation:
    """The evaluation in `path`. Raises MindscopeError naming every fault."""
    text, data = read_json(path)
    eta, faults = _validated(Evaluation, text, data)
    faults += evaluation_faults(list(enumerate(eta.items)) if eta else survivors(EvaluationItem, data, "items"))
    if eta is None or faults:
        raise faults_error(str(path), faults)
    return eta


def check_benchmark(benchmark: Benchmark, source: str) -> Benchmark:
    """`benchmark`, held to the rules of a file. Raises MindscopeError; `source` says where it came from."""
    if faults := benchmark_faults(dump(benchmark), list(enumerate(benchmark.items))):
        raise faults_error(source, faults)
    return benchmark


def write_model(part: BaseModel, path: Path) -> None:
    """Write a benchmark or any other part as indented JSON, whole or not at all."""
    write_whole(path, json.dumps(dump(part), indent=2, ensure_ascii=False) + "\n")


def write_evaluation(eta: Evaluation, path: Path, *, compat: bool = False) -> list[str]:
    """Write η; with `compat`, in the form infereval reads. Returns what that form cannot say, one line
    each."""
    if not compat:
        write_model(eta, path)
        return []
    plain, lost = for_infereval(eta)
    write_model(plain, path)
    return lost


def for_infereval(eta: Evaluation) -> tuple[Evaluation, list[str]]:
    """η with what infereval has no place for turned into abstentions or left out, and a line for each
    loss."""
    lost = []
    if eta.setup is not None:
        lost.append("setup (template, parser, elicitation and reference hash) is left out")
    for item in eta.items:
        if item.model_verdict == "no_data":
            lost.append(f"item {item.id!r}: no_data is written as abstain")
        if missing := item.analyst_verdicts.count(None):
            lost.append(f"item {item.id!r}: {missing} missing analyst verdict(s) are written as abstain")
    return eta.model_copy(update={"setup": None, "items": tuple(map(_item_for_infereval, eta.items))}), lost


def _item_for_infereval(item: EvaluationItem) -> EvaluationItem:
    samples = tuple(
        sample.model_copy(update={"parsed_verdict": sample.parsed_verdict or "abstain", "label_probabilities": None})
        for sample in item.samples
    )
    vote = item.majority_vote
    if vote is not None and vote.verdict == "no_data":
        vote = vote.model_copy(update={"verdict": "abstain"})
    return item.model_copy(
        update={
            "analyst_verdicts": tuple(verdict or "abstain" for verdict in item.analyst_verdicts),
            "model_verdict": "abstain" if item.model_verdict == "no_data" else item.model_verdict,
            "samples": samples,
            "majority_vote": vote,
        }
    )


def read_json(path: Path) -> tuple[str, Any]:
    """The text of a JSON file and its data. Raises MindscopeError for anything but plain JSON in UTF-8."""
    text = read_text(path)
    try:
        return text, loads(text)
    except ValueError as error:
        raise MindscopeError(f"{path} is not plain JSON: {error}.") from error


def faults_error(source: str, faults: Sequence[object]) -> MindscopeError:
    """One error for all `faults` of the file `source`."""
    return MindscopeError(listing(source, faults))


def _validated(model: type[Part], text: str, data: Any) -> tuple[Part | None, list[object]]:
    try:
        return model.model_validate_json(text), []
    except ValidationError as error:
        return None, list(shape_faults(error, data))


def shape_faults(error: ValidationError, data: Any) -> Iterator[Fault]:
    """One fault for each thing pydantic found wrong in `data`."""
    for detail in error.errors(include_url=False):
        place = _place(detail["loc"], data)
        if detail["type"] == "missing":
            yield Fault(place, "nothing", "a value; the field is required")
        elif detail["type"] == "extra_forbidden":
            yield Fault(place, shown(detail["input"]), "no such field")
        else:
            yield Fault(place, shown(detail["input"]), detail["msg"].removeprefix("Input should be "))


def _place(location: tuple[int | str, ...], data: Any) -> str:
    """`items[2] 'C1' analyst_verdicts[0]`: a path that also names the list members that have an id."""
    written = ""
    for step in location:
        if isinstance(data, Mapping) and step not in data and step in ("template", "plugin"):
            continue  # pydantic names the chosen kind of builder here; the file has no such level
        written += f"[{step}]" if isinstance(step, int) else f"{' ' if written else ''}{step}"
        try:
            data = data[step]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(step, int) and isinstance(data, Mapping) and isinstance(data.get("id"), str):
            written += f" {data['id']!r}"
    return written or "the file"
