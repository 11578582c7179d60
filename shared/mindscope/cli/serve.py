"""`mindscope serve`: an OpenAI-compatible endpoint for the embedded model or any GGUF file."""

from typing import Annotated

import typer

from mindscope import serve as endpoint


def serve(
    model: Annotated[str, typer.Option(help="embedded, or the path of a GGUF file.")] = endpoint.EMBEDDED,
    host: Annotated[str, typer.Option(help="Address to listen on; the default is this machine only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    parallel: Annotated[int, typer.Option(min=1, help="Requests worked on at once.")] = 4,
    context: Annotated[int, typer.Option(min=1, help="Tokens for each request, prompt and answer.")] = 8192,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Processor threads; half the machine's when left out.")
    ] = None,
) -> None:
    """Serve a model at http://HOST:PORT/v1 until Ctrl-C."""
    endpoint.serve(model, host=host, port=port, parallel=parallel, context=context, threads=threads)
