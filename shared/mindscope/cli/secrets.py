"""Keeps an API key out of what a run prints and stores. Some endpoints echo the key in their error messages, and
verifiers records those messages whole."""

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from mindscope.records import write_whole

_SHORTEST_SECRET = 16
"""Shorter values ("EMPTY", "embedded") are placeholders, and would hit ordinary text."""


class Secret:
    """The value of an environment variable, to be taken out of texts."""

    def __init__(self, variable: str) -> None:
        value = os.environ.get(variable, "")
        self._value = value if len(value) >= _SHORTEST_SECRET else None
        self._placeholder = f"[{variable}]"

    def removed_from(self, text: str) -> str:
        """`text` with the name of the variable in place of its value."""
        return text if self._value is None else text.replace(self._value, self._placeholder)

    @contextlib.contextmanager
    def kept_out_of(self, folder: Path) -> Iterator[None]:
        """Hide the value in all that is written to stderr inside, and at the end in every file of `folder`."""
        with contextlib.redirect_stderr(_Filtered(sys.stderr, self)):
            try:
                yield
            finally:
                gc.collect()  # asyncio reports failed tasks that nobody awaited when they are collected
                self._clean(folder)

    def _clean(self, folder: Path) -> None:
        if self._value is None:
            return
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and self._value.encode() in path.read_bytes():
                write_whole(path, self.removed_from(path.read_text(encoding="utf-8", errors="replace")))


class _Filtered:
    """A text stream that hides a secret; everything else is the stream's own."""

    def __init__(self, stream: TextIO, secret: Secret) -> None:
        self._stream = stream
        self._secret = secret

    def write(self, text: str) -> int:
        self._stream.write(self._secret.removed_from(text))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
