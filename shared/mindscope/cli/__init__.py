"""The `mindscope` command. An environment package adds its own commands through the entry point group
`mindscope.commands`, whose members are typer apps."""

import sys
from importlib.metadata import entry_points

import typer

from mindscope.cli.eval import evaluate
from mindscope.cli.report import report
from mindscope.errors import MindscopeError

app = typer.Typer(
    name="mindscope",
    help="Cognitive paradigms on language models: run them, score them, look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("eval")(evaluate)
app.command()(report)
for _entry in sorted(entry_points(group="mindscope.commands")):
    try:
        app.add_typer(_entry.load(), name=_entry.name)
    except ImportError as _error:
        print(f"mindscope: the command {_entry.name!r} cannot be loaded: {_error}", file=sys.stderr)


def main() -> None:
    """Run the command line; an error meant for the user is one message on stderr and exit code 2."""
    try:
        app()
    except MindscopeError as error:
        print(f"mindscope: {error}", file=sys.stderr)
        sys.exit(2)
