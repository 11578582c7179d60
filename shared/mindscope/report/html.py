"""What every page is made with: a template, text shown safely, a file that is whole or absent.

    write_page(template("mindscope.report", "page.html.jinja").render(…), Path("report.html"))

A page extends `base.html.jinja` (its look, and a policy that lets it load nothing) and shows whatever a model or a
row contains through the filter `show`: escaped, with invisible characters made visible.
"""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mindscope.errors import MindscopeError
from mindscope.records import write_whole
from mindscope.report.text import interval_text, value_text
from mindscope.report.visible import visible

_LONGEST_TEXT = 20_000
"""Characters of one message that a page shows; what is left out is said."""


def template(package: str, name: str) -> Any:
    """The jinja2 template `name` in the folder of `package`.

    Its filters are `show` (text as HTML), `visible` (text for an attribute or a title), `value` and `interval`.
    Raises MindscopeError when the `report` extra is not installed.
    """
    jinja2 = extra("jinja2")
    places = [jinja2.PackageLoader(package, ""), jinja2.PackageLoader("mindscope.report", "")]
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader(places),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"show": _show, "visible": visible, "value": value_text, "interval": interval_text}
    return environment.get_template(name)


def write_page(page: str, path: Path) -> None:
    """Write `page` to `path`, whole or not at all; raises MindscopeError when that fails."""
    try:
        write_whole(path, page)
    except OSError as error:
        raise MindscopeError(f"{path}: the report cannot be written here: {error.strerror or error}") from None


def markup(html: str) -> Any:
    """`html` as it is, not to be escaped; for what our own code drew."""
    return extra("markupsafe").Markup(html)


def extra(module: str) -> ModuleType:
    """A module of the `report` extra, or one that needs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MindscopeError(
            f"the HTML report needs {error.name}, which is not installed: pip install 'mindscope[report]'"
        ) from None


def _show(text: str) -> Any:
    """`text` as HTML: escaped, cut when very long, invisible characters as marked code points."""
    shown, left_out = text[:_LONGEST_TEXT], len(text) - _LONGEST_TEXT
    escape = extra("markupsafe").escape
    html = visible(str(escape(shown)), '<span class="code-point">{}</span>'.format)
    if left_out > 0:
        html += f'<span class="cut">… {left_out:,} more characters not shown</span>'
    return markup(html)
