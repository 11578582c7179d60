"""`mindscope report`: a run folder as a table, a JSON document or an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from mindscope.report.page import write_report
from mindscope.report.runs import read_run
from mindscope.report.summary import format_text, summarise

DEFAULT_OUTPUT = Path("report.html")


def report(
    run_dir: Annotated[
        Path,
        typer.Argument(help="The run's folder, or its results.jsonl (verifiers 0.3) or traces.jsonl (v1)."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=f"The page to write. [default: {DEFAULT_OUTPUT}]")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document; write a page only where -o names one.")
    ] = False,
) -> None:
    """Say what a run found: accuracy with n and intervals, outcomes, failures, sample transcripts."""
    run = read_run(run_dir)
    summary = summarise(run)
    if as_json:
        print(summary.to_json())
        if output is not None:
            write_report(run, output)
        return
    print(format_text(summary))
    page = output or DEFAULT_OUTPUT
    write_report(run, page)
    print(f"\nwrote {page}")
