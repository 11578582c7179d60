"""What a model is asked: a question form, the template that lays out the position, and for coherence a frame.

    wording = Wording(form="coherence", template="plain-1", frame="glosses-1")
    prompt = compose(wording, benchmark, item)
    prompt.messages        # for a chat model: what is asked of it, then the position and the question
    prompt.text            # for a base model, three worked examples first; ends with "Verdict:"

The form decides the question and the labels, the template how premises and conclusions are laid out (it never sees
an id), the frame which norm the coherence question is asked under. All wordings are our own, and an id never changes
its text: `Wording.template_id` and `frame_id` are what an evaluation records.

A benchmark's own `verification_prompt` is the template `benchmark`: support only, and the default there if it has one.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from mindscope.errors import MindscopeError
from pydantic import BaseModel, ConfigDict

from infereval_env.formats import Benchmark, EvaluationItem, Item
from infereval_env.verdicts import LABELS, QuestionForm, Verdict
from infereval_env.wording import conclusion_context, expressions, premise_context

Style = Literal["chat", "completion"]
Template = Literal["plain-1", "listed-1", "benchmark"]
Frame = Literal["glosses-1", "defeasible-1", "defeasible-open-1"]
TEMPLATES: tuple[Template, ...] = get_args(Template)
FRAMES: tuple[Frame, ...] = get_args(Frame)
NO_FRAME = "none"
ANSWER = "Verdict:"
"""Ends every prompt; the label is what comes next."""
STOP = ("\n",)
"""Ends the reply of a base model."""

_SUPPORT = (
    "You are shown some premises and one proposed conclusion. Judge whether a competent speaker who accepts the "
    "premises, and knows nothing else of the case, should draw the conclusion.\n"
    "GOOD: the conclusion follows.\n"
    "BAD: the premises do not support the conclusion.\n"
    "ABSTAIN: the question makes no sense or cannot be judged.\n"
    "Reply with one of these three labels and nothing else."
)
_COHERENCE = (
    "You are shown a position: what someone holds and, it may be, what they deny. Judge whether one can hold the "
    "position as a whole.\n"
    "INCOHERENT: the parts cannot stand together. Where something is denied, what is held settles that it is so. Where "
    "nothing is denied, the things held rule each other out.\n"
    "COHERENT: the parts can stand together.\n"
    "UNCLEAR: the question makes no sense or cannot be judged.\n"
)
_LABEL_ONLY = "Reply with one of these three labels and nothing else."
_DEFEASIBLE = (
    "The standard is not strict logic but what goes without saying among people who know the subject. Take the case to "
    "be an ordinary one unless something held says otherwise. To deny what the things held would ordinarily settle is "
    "INCOHERENT; once something is held that takes that support away, the same denial is COHERENT.\n"
    "For example, holding that the milk was left in the sun all day and denying that it has gone off is INCOHERENT. "
    "Holding that the milk was left in the sun all day and that the carton is sterile and sealed, and denying that it "
    "has gone off, is COHERENT.\n"
)
_OPEN = (
    "What the things held leave open, one way or the other, is UNCLEAR. For example, holding that the milk was bought "
    "on a Tuesday and denying that it has gone off is UNCLEAR.\n"
)
_FRAMES: dict[Frame, str] = {
    "glosses-1": _COHERENCE + _LABEL_ONLY,
    "defeasible-1": _COHERENCE + _DEFEASIBLE + _LABEL_ONLY,
    "defeasible-open-1": _COHERENCE + _DEFEASIBLE + _OPEN + _LABEL_ONLY,
}
_QUESTION: dict[QuestionForm, str] = {
    "support": "Does the conclusion follow: GOOD, BAD or ABSTAIN?",
    "coherence": "Can this be held as a whole: COHERENT, INCOHERENT or UNCLEAR?",
}


class Position(NamedTuple):
    """An implication in words. The contexts join the lists as the benchmark's builders say."""

    held: Sequence[str]
    concluded: Sequence[str]
    held_context: str
    concluded_context: str


def _together(*parts: str) -> Position:
    """A position for the worked examples: the last part is the conclusion."""
    return Position(parts[:-1], parts[-1:], " and ".join(parts[:-1]), parts[-1])


_EXAMPLES: tuple[tuple[Position, Verdict], ...] = (
    (_together("the shop is closed for the day", "customers can be served there now"), "bad"),
    (_together("the lake is frozen from shore to shore", "the water is cold"), "good"),
    (_together("the number seven is asleep", "the number seven is blue"), "abstain"),
)
"""For base models, which take the pattern from them; one for each label, about nothing that a benchmark is about."""


class Wording(BaseModel):
    """One way to ask; every field is an axis on which runs can differ."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    form: QuestionForm = "coherence"
    template: Template = "plain-1"
    frame: Frame = "glosses-1"
    variant: int = 0
    style: Style = "chat"
    keep_tex: bool = False

    @property
    def template_id(self) -> str:
        """The template as recorded; the worked examples of the completion style are part of it."""
        return self.template if self.style == "chat" else f"{self.template}+examples-1"

    @property
    def frame_id(self) -> str:
        """The frame as recorded: support has none."""
        return self.frame if self.form == "coherence" else NO_FRAME


class Prompt(NamedTuple):
    """What is sent: `system` and `user` to a chat model, `text` to a base model."""

    system: str
    user: str
    text: str

    @property
    def messages(self) -> list[Any]:
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]

    @property
    def hash(self) -> str:
        """infereval's: of the user's text alone."""
        return "sha256:" + hashlib.sha256(self.user.encode()).hexdigest()


def compose(wording: Wording, benchmark: Benchmark, item: Item | EvaluationItem) -> Prompt:
    """The prompt for one item. Raises MindscopeError when this form or template cannot ask it (`check_askable`)."""
    check_askable(wording, benchmark, [item])
    position = Position(
        expressions(benchmark, item.premises, variant=wording.variant, keep_tex=wording.keep_tex),
        expressions(benchmark, item.conclusions, variant=wording.variant, keep_tex=wording.keep_tex),
        premise_context(benchmark, item, variant=wording.variant, keep_tex=wording.keep_tex),
        conclusion_context(benchmark, item, variant=wording.variant, keep_tex=wording.keep_tex),
    )
    system = _SUPPORT if wording.form == "support" else _FRAMES[wording.frame]
    own = benchmark.verification_prompt if wording.template == "benchmark" else None
    if own is not None:
        asked = own.template.replace("{premise_context}", position.held_context)
        asked = asked.replace("{conclusion_context}", position.concluded_context)
        return Prompt(own.system or "", asked, "\n\n".join(part for part in (own.system, asked) if part))
    user = _asked(wording, position)
    label_of = {verdict: label for label, verdict in LABELS[wording.form].items()}
    examples = [f"{_asked(wording, example)} {label_of[verdict]}" for example, verdict in _EXAMPLES]
    return Prompt(system, user, "\n\n".join([system, *examples, user]))


def check_askable(wording: Wording, benchmark: Benchmark, items: Sequence[Item | EvaluationItem]) -> None:
    """Raises MindscopeError that names what stands in the way of asking `items` so, before any call is made."""
    if wording.template == "benchmark":
        if benchmark.verification_prompt is None:
            raise MindscopeError(f"Benchmark {benchmark.id!r} has no verification_prompt, so no template 'benchmark'.")
        if wording.form != "support" or wording.style != "chat":
            raise MindscopeError("The template 'benchmark' asks in the form 'support', in chat style.")
    if unaskable := [item.id for item in items if not askable(wording.form, item)]:
        raise MindscopeError(
            f"The question form 'support' asks about exactly one conclusion, and {len(unaskable)} items have none or "
            f"several: {', '.join(unaskable)}. Use 'coherence', or leave them out."
        )


def askable(form: QuestionForm, item: Item | EvaluationItem) -> bool:
    """Whether the form can ask about the item: support needs exactly one conclusion."""
    return form == "coherence" or len(item.conclusions) == 1


def choose_template(benchmark: Benchmark, form: QuestionForm, style: Style, chosen: Template | None) -> Template:
    """The template to use: the one chosen, else the benchmark's, else `plain-1`.

    Raises MindscopeError when the benchmark names a template that is not ours, as its authors' results rest on it.
    """
    if chosen is not None:
        return chosen
    if form == "support" and style == "chat" and benchmark.verification_prompt is not None:
        return "benchmark"
    return _ours("template", benchmark.template_id, TEMPLATES, benchmark) or "plain-1"


def choose_frame(benchmark: Benchmark, chosen: Frame | None) -> Frame:
    """The frame to use: the one chosen, else the benchmark's, else `glosses-1`. Raises MindscopeError as
    `choose_template`."""
    return chosen or _ours("frame", benchmark.coherence_frame_id, FRAMES, benchmark) or "glosses-1"


def _ours(kind: str, named: str | None, known: Sequence[Any], benchmark: Benchmark) -> Any:
    if named is not None and named not in known:
        raise MindscopeError(
            f"Benchmark {benchmark.id!r} asks for the {kind} {named!r}, whose wording is not here. Choose one with "
            f"--{kind}: {', '.join(known)}; the result is then under that {kind}."
        )
    return named


def _asked(wording: Wording, position: Position) -> str:
    return "\n".join([_LAYOUTS[wording.template][wording.form](position), _QUESTION[wording.form], ANSWER])


def _plain_support(position: Position) -> str:
    held = f"Premises: {position.held_context}." if position.held else "Premises: none."
    return f"{held}\nConclusion: {position.concluded_context}."


def _plain_coherence(position: Position) -> str:
    held = f"Someone holds that {position.held_context}." if position.held else "Someone holds nothing in particular."
    denied = "; ".join(f"that {text}" for text in position.concluded)
    return f"{held}\nThey deny {denied}." if denied else f"{held}\nThey deny nothing."


def _listed_support(position: Position) -> str:
    return f"Given:\n{_list(position.held)}\nIs it right to conclude:\n{_list(position.concluded)}"


def _listed_coherence(position: Position) -> str:
    return f"Held:\n{_list(position.held)}\nDenied:\n{_list(position.concluded)}"


def _list(parts: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in parts) or "- nothing"


_LAYOUTS: dict[str, dict[QuestionForm, Callable[[Position], str]]] = {
    "plain-1": {"support": _plain_support, "coherence": _plain_coherence},
    "listed-1": {"support": _listed_support, "coherence": _listed_coherence},
}
