"""`mindscope space-tracking …`: scoring with records, and the validation tables.

    mindscope space-tracking score --model embedded -o outputs/scores/embedded
    mindscope space-tracking validate outputs/scores/embedded outputs/scores/other -o validation
    mindscope space-tracking validate --model embedded -o validation        # both in one

`mindscope score space_tracking` and `mindscope audit space_tracking` are the short forms without records.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from mindscope.cli.arguments import json_object
from mindscope.cli.score import progress_line
from mindscope.errors import MindscopeError
from mindscope.records import write_whole

from space_tracking.readout import score as score_corpus
from space_tracking.runs import READOUTS, ReadRun, load_run
from space_tracking.validation import Validation
from space_tracking.validation import validate as draw_up

app = typer.Typer(help="Which mental space a model's next token is in.", no_args_is_help=True)

BatchSize = Annotated[int, typer.Option(min=1, help="Prompts in one forward pass.")]
EnvArgs = Annotated[str, typer.Option(help="The environment's arguments, as a JSON object.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16 or float64.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, …")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the tables.")]


@app.command()
def score(
    model: Annotated[str, typer.Option("--model", "-m", help="Hub id, folder, or embedded.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder for the records.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder of -o.")] = False,
    batch_size: BatchSize = 16,
    env_args: EnvArgs = "{}",
    revision: Revision = None,
    dtype: Dtype = "float32",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Read the whole corpus out of a local model and print its tables."""
    if resume and output is None:
        raise MindscopeError("--resume needs -o, the folder of the run to go on with")
    result = score_corpus(
        model,
        batch_size=batch_size,
        env_args=json_object("--env-args", env_args),
        progress=progress_line("read"),
        output=output,
        resume=resume,
        revision=revision,
        dtype=dtype,
        device=device,
    )
    print(result.to_json() if as_json else result.format_text())


@app.command()
def validate(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders of `mindscope space-tracking score -o`, of `mindscope eval`, or of vf-eval."),
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option("--model", "-m", help="A local model to score first; may be repeated.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for validation.md, validation.html and records.")
    ] = None,
    batch_size: BatchSize = 16,
    env_args: EnvArgs = "{}",
    dtype: Dtype = "float32",
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """The validation tables of one or several models, side by side and compared pairwise.

    With -o, models named with --model are scored with records below that folder, and a second call goes on with them.
    """
    paths = list(runs or [])
    if model and output is None:
        raise MindscopeError("--model needs -o, the folder for its records and the report")
    for source in model or []:
        folder = _records(output or Path(), source)
        score_corpus(
            source,
            batch_size=batch_size,
            env_args=json_object("--env-args", env_args),
            progress=progress_line(f"read {source}:"),
            output=folder,
            resume=(folder / READOUTS).exists(),
            dtype=dtype,
            device=device,
        )
        paths.append(folder)
    if not paths:
        raise MindscopeError("name a run's folder, or a local model with --model")
    report = draw_up(_told_apart(paths))
    print(report.to_json() if as_json else report.format_text())
    if output is not None:
        _write(report, output)


def _told_apart(paths: Sequence[Path]) -> list[ReadRun]:
    """The runs, each under its model's name, with its folder's beside it where two are of one model."""
    runs = [load_run(path) for path in paths]
    labels = [run.label for run in runs]
    return [
        run if labels.count(run.label) == 1 else run.model_copy(update={"label": f"{run.label} ({path})"})
        for path, run in zip(paths, runs, strict=True)
    ]


def _records(output: Path, source: str) -> Path:
    return output / re.sub(r"[^\w.-]+", "-", source).strip("-.")


def _write(report: Validation, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "validation.md", report.to_markdown())
    write_whole(folder / "validation.html", report.to_html())
