"""`mindscope audit`: are an environment's stimuli what they claim to be?

An environment whose stimuli can be audited has a module `audit` with

    run(tokenizer) -> object with ok, format_text() and to_json()
"""

from typing import Annotated

import typer

from mindscope.cli.arguments import environment_module


def audit(
    env: Annotated[str, typer.Argument(help="Environment, as space_tracking or space-tracking; it must be installed.")],
    tokenizer: Annotated[
        str | None, typer.Option(help="Also audit the tokens of the answers: hub id, folder, or embedded.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of the page.")] = False,
) -> None:
    """Count an environment's stimuli, check their balance and what shortcuts score. Exits 1 when a bound is left."""
    result = environment_module(env, "audit", "audit").run(tokenizer)
    print(result.to_json() if as_json else result.format_text())
    if not result.ok:
        raise typer.Exit(1)
