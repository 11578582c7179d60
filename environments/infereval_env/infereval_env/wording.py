"""The words of an implication: bearers put into a text, for a model's prompt or an analyst's survey.

    premise_context(benchmark, item)               # "the kettle has boiled and the lid is on"
    conclusion_context(benchmark, item, variant=1) # with the first paraphrase of each bearer that has one

Bearers come in the order of their ids. A benchmark's own context builder joins them.
"""

import re
from collections.abc import Iterable

from mindscope.errors import MindscopeError

from infereval_env.formats import Benchmark, Builder, EvaluationItem, Item, TemplateBuilder

_PAIRED = re.compile(r"\$([^$]*)\$")
_MATHS = re.compile(r"\$(?=\S)([^$]*)(?<=\S)\$(?!\d)")


def strip_tex(text: str, *, compat: bool = False) -> str:
    """`text` without the dollar signs around TeX: "$a$ is red" becomes "a is red".

    Two prices are not TeX: as in Pandoc, the signs must touch what they enclose, and no digit follows the
    second. infereval strips any pair (`compat=True`).
    """
    return (_PAIRED if compat else _MATHS).sub(r"\1", text)


def expressions(
    benchmark: Benchmark,
    ids: Iterable[str],
    *,
    variant: int = 0,
    keep_tex: bool = False,
    compat: bool = False,
) -> list[str]:
    """The wording of bearers, by id; variant k is a bearer's k-th paraphrase, or its expression if it has
    fewer."""
    found = []
    for name in sorted(ids):
        bearer = benchmark.bearers[name]
        text = bearer.paraphrases[variant - 1] if 0 < variant <= len(bearer.paraphrases) else bearer.expression
        found.append(text if keep_tex else strip_tex(text, compat=compat))
    return found


def premise_context(
    benchmark: Benchmark, item: Item | EvaluationItem, *, variant: int = 0, keep_tex: bool = False
) -> str:
    """The premises as one text, empty when there are none. Raises MindscopeError for a builder that is
    code."""
    parts = expressions(benchmark, item.premises, variant=variant, keep_tex=keep_tex)
    return _joined(benchmark.context_builders.premise, parts)


def conclusion_context(
    benchmark: Benchmark, item: Item | EvaluationItem, *, variant: int = 0, keep_tex: bool = False
) -> str:
    """The conclusions as one text, empty when there are none. Raises MindscopeError for a builder that is
    code."""
    parts = expressions(benchmark, item.conclusions, variant=variant, keep_tex=keep_tex)
    return _joined(benchmark.context_builders.conclusion, parts)


def _joined(builder: Builder, parts: list[str]) -> str:
    if not isinstance(builder, TemplateBuilder):
        raise MindscopeError(
            f"The benchmark's context builder {builder.plugin!r} is code, which is not run from a data file. "
            "Use a builder of kind 'template'."
        )
    return builder.template.replace("{expressions}", builder.joiner.join(parts)) if parts else ""
