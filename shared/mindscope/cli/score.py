"""`mindscope score`: read an environment's answers out of a local model's weights. No endpoint, no sampling.

An environment that can be read out has a module `readout` with

    score(model, *, batch_size, env_args, progress) -> object with to_json() and format_text()

and one that keeps what it has read, so that a stopped run can go on, also takes `output`, a folder, and `resume`.
"""

import sys
import time
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from mindscope.cli.arguments import environment_module, json_object
from mindscope.errors import MindscopeError


def score(
    env: Annotated[str, typer.Argument(help="Environment, as ps_primal or ps-primal; it must be installed.")],
    model: Annotated[str, typer.Option("--model", "-m", help="Hub id, folder, or embedded.")],
    batch_size: Annotated[int, typer.Option(min=1, help="Prompts in one forward pass.")] = 16,
    env_args: Annotated[str, typer.Option(help="The environment's arguments, as a JSON object.")] = "{}",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder for records, where the environment keeps any.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder of -o.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the table.")] = False,
) -> None:
    """Score an environment white-box: log-probabilities of the answers, batched, with intervals."""
    readout = environment_module(env, "readout", "score")
    keeping: dict[str, Any] = {}
    if output is not None:
        if "output" not in signature(readout.score).parameters:
            raise MindscopeError(f"{env} is read in one go and keeps no records; leave out -o and --resume")
        keeping = {"output": output, "resume": resume}
    elif resume:
        raise MindscopeError("--resume needs -o, the folder of the run to go on with")
    result = readout.score(
        model,
        batch_size=batch_size,
        env_args=json_object("--env-args", env_args),
        progress=progress_line("scored"),
        **keeping,
    )
    print(result.to_json() if as_json else result.format_text())


def progress_line(done_word: str) -> Callable[[int, int], None]:
    """A callback (done, total) that keeps one line of progress and time left on stderr."""
    started = time.monotonic()

    def show(done: int, total: int) -> None:
        left = (time.monotonic() - started) / done * (total - done)
        end = "\n" if done == total else ""
        print(f"\r{done_word} {done}/{total}, {left:.0f} s left   ", end=end, file=sys.stderr, flush=True)

    return show
