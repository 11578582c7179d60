"""What the commands have in common: their usual options, how they read a run and how they print a result."""

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from mindscope.statistics import Estimate
from pydantic import BaseModel

from infereval_env.files import read_benchmark, read_evaluation
from infereval_env.formats import Benchmark, Evaluation
from infereval_env.readings import belonging_warnings
from infereval_env.rollouts import evaluation_of_run, is_run

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Compat = Annotated[bool, typer.Option("--compat", help="Use infereval's conventions, defects included.")]
BenchmarkPath = Annotated[Path, typer.Argument(help="A benchmark (JSON).")]
EtaPath = Annotated[Path, typer.Argument(help="An evaluation (JSON).")]
SomeBenchmark = Annotated[
    Path | None, typer.Option("--benchmark", help="The benchmark, for ladders, tags, and clusters of items.")
]
Again = Annotated[Path | None, typer.Option("--retest", help="The same run made again.")]
Other = Annotated[Path | None, typer.Option("--other-template", help="The run with another template.")]
ClaimsPath = Annotated[Path | None, typer.Option("--claims", help="The author's claims (JSON).")]
Setup = Annotated[str | None, typer.Option(help="Which wording, where a verifiers run holds several.")]


def number(value: float | None) -> str:
    """A number for reading, or `undefined`."""
    return "undefined" if value is None else f"{value:.3f}"


def estimate(found: Estimate) -> str:
    """A value with its interval, or with the reason why it has none."""
    spread = f"[{found.low:.3f}, {found.high:.3f}]" if found.low is not None else f"({found.method})"
    return f"{number(found.value)} {spread} n {found.n}"


def warn(warnings: Iterable[str]) -> None:
    """Warnings go to stderr, so that stdout holds the result alone."""
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


def show(document: BaseModel | dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """Print the document as JSON, or else the lines."""
    if not as_json:
        print("\n".join(lines))
        return
    data = document.model_dump(mode="json") if isinstance(document, BaseModel) else document
    print(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def joined(
    path: Path, benchmark_path: Path | None, compat: bool = False, setup: str | None = None
) -> tuple[Evaluation, Benchmark | None, list[str]]:
    """An evaluation, or a verifiers run as one, with its benchmark, checked to belong together; infereval does not
    look."""
    benchmark = read_benchmark(benchmark_path) if benchmark_path else None
    if is_run(path):
        eta, benchmark, warnings = evaluation_of_run(path, setup, benchmark)
    else:
        eta = read_evaluation(path)
        warnings = [] if compat or benchmark is None else belonging_warnings(eta, benchmark)
    warn(warnings)
    return eta, benchmark, warnings
