"""Text from a model, shown so that nothing in it can hide or rearrange the page.

    visible("cat\\u202e") == "cat⟨U+202E⟩"

Control, bidirectional, zero-width and other invisible characters become their code point in angle brackets;
line breaks and tabs stay. `label` puts a name on one line of a table or figure.
"""

import re
import unicodedata
from collections.abc import Callable

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")

_INVISIBLE_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"))
"""Controls, format marks (bidi, zero-width, tags), surrogates, private, unassigned, separators."""

_INVISIBLE_OTHERS = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
"""Fillers, blanks and variation selectors, which Unicode files under letters, marks and symbols."""


def visible(text: str, show: Callable[[str], str] = "⟨{}⟩".format) -> str:
    """`text` with each invisible character replaced by `show("U+XXXX")`."""

    def replaced(match: re.Match[str]) -> str:
        char = match[0]
        if unicodedata.category(char) in _INVISIBLE_CATEGORIES or _INVISIBLE_OTHERS.match(char):
            return show(f"U+{ord(char):04X}")
        return char

    return _SUSPECT.sub(replaced, text)


def label(text: str, longest: int) -> str:
    """`text` made visible, on one line, cut to `longest` characters with an ellipsis."""
    line = visible(text).replace("\n", " ").replace("\t", " ")
    return line if len(line) <= longest else line[: longest - 1] + "…"
