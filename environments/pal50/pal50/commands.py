"""`mindscope pal50 analyse` and `mindscope pal50 power`."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Analyse runs of pal50, and plan them.", no_args_is_help=True)

DEFAULT_OUTPUT = Path("analysis.html")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@app.command()
def analyse(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folders. One that studied nothing (study=none) or re-paired words (study=repaired) serves as "
            "control of the others of its model; further runs with study=full are compared with the first.",
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help=f"The page to write. [default: {DEFAULT_OUTPUT}]")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy, curves, intrusions, confidence and regression of each run, and the runs against each other."""
    from pal50.analysis import analyse as analyse_sources
    from pal50.analysis import format_text, write_analysis
    from pal50.analysis.sources import read_sources

    analysis = analyse_sources(read_sources(runs))
    print(analysis.model_dump_json(indent=2) if as_json else format_text(analysis))
    page = output or (None if as_json else DEFAULT_OUTPUT)
    if page is not None:
        write_analysis(analysis, page)
        if not as_json:
            print(f"\nwrote {page}")


@app.command()
def power(
    first: Annotated[float, typer.Argument(help="One rate, such as 0.95.")],
    second: Annotated[float, typer.Argument(help="The other rate, such as 0.85.")],
    target: Annotated[float, typer.Option("--power", help="Chance to find the difference when it is there.")] = 0.8,
    trials: Annotated[int, typer.Option(help="Trials of one participant at the level; 10 in a list of fifty.")] = 10,
    design_effect: Annotated[
        float, typer.Option(help="As `analyse` reports it for a run like the one planned; 1 for independent trials.")
    ] = 1.0,
    as_json: AsJson = False,
) -> None:
    """How many participants a group tell two rates apart (two-sided, alpha 0.05)."""
    from pal50.analysis import format_plan, participants_needed

    plan = participants_needed(first, second, power=target, trials_each=trials, design_effect=design_effect)
    print(plan.model_dump_json(indent=2) if as_json else format_plan(plan))
