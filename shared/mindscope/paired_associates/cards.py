"""psychscanner task cards, read strictly: a card loads whole, or one error lists everything wrong with it.

    card = load_card("pal50.json")
    card.pairs()       # one pair for each test trial, for ps_primal
    card.items         # label to turns, in the order of presentation, for pal50 to replay

The format is that of https://github.com/saurabhr/psychscanner-primal (`examples/tasks`). Checked beyond what
its own loader checks: trial codes are unique (unless the card's `chain_type` is "trial", where the turns of
one trial share a code); a cue is studied once and tested once at most; what is tested was studied, with the
same target and similarity; every parser is one that psychscanner has.
"""

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from mindscope.answers import folded
from mindscope.errors import MindscopeError
from mindscope.paired_associates.pairs import Similarity, Word, WordPair, level_of
from mindscope.stimuli import loads, read_text
from mindscope.validation import Fault, check, listing, shown

MAX_BYTES = 16 * 1024 * 1024

_PARSER_NAMES = """
    AllResponseRMEI AllResponseRMEIN AllResponseRMIE AllResponseRMIEN Confidence16 DefaultLiteralAgree
    DefaultLiteralVivid010 DefaultLiteralVivid15 DefaultLiteralVivid15Pol DefaultParser DefaultRMEncodingPhase
    DefaultRatingParser DefaultResponseRating DefaultResponseRatingConvo DefaultRmChoiceConf16
    DefaultWordCaseNonWord DefaultWordCaseNonWordConf16 JudgmentEI JudgmentEIN JudgmentIE JudgmentIEN
    PairedAssociateRecall Ready RelatednessRating ResponseRmScSt ResponseRmStEI ResponseRmStEIN ResponseRmStIE
    ResponseRmStIEN Response_part_1_rm Response_part_2_rm Response_part_2_rmrevo SerialProbeResponse
    SimpleResponseRating Source TaskReadyConfidence TaskResponse Task_1_ResponseRate Task_2_ResponseRate
    Task_3_ResponseRate TwoResponses Word2 WordNonWord
"""
PARSERS = frozenset(_PARSER_NAMES.split())
"""The structured-output parsers of psychscanner, by name."""

_INSTRUCTION = "task_instruction"
"""The trial code that psychscanner reserves for a further instruction; it may recur."""


class CardError(MindscopeError):
    """A task card that cannot be used."""


def _known_parser(name: str | None) -> str | None:
    if name is None or name in {"", "0"} or name in PARSERS:
        return name
    near = difflib.get_close_matches(name, PARSERS, n=1)
    hint = f" (nearest: {near[0]})" if near else ""
    raise ValueError(f"null, or the name of one of psychscanner's {len(PARSERS)} parsers{hint}")


def _not_blank(value: Any) -> Any:
    if not isinstance(value, str | dict | list) or not value:
        raise ValueError("text, an object or a list of content blocks, not empty")
    return value


Parser = Annotated[str | None, AfterValidator(_known_parser)]
Text = Annotated[str, Field(min_length=1, description="text, not empty")]


class CardTrial(BaseModel):
    """One turn of a card."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    trcode: Text
    stimulus: Annotated[Any, AfterValidator(_not_blank), Field(description="text, an object or content blocks")]
    parser: Parser = None
    fb: bool = True
    tools: list[Any] | None = None
    system_message: Any = None
    corrAns: Any = None  # noqa: N815
    og_source: Any = None


class PairTrial(CardTrial):
    """One turn that shows a pair (`encoding`) or asks for its second word (`test`)."""

    phase: Literal["encoding", "test"] = Field(description="'encoding' or 'test'")
    word1: Word
    word2: Word
    similarity: Similarity


class CardHeader(BaseModel):
    """A card without its items."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    tasktype: Text
    taskname: Text
    instructions: Any = Field(description="any JSON; usually an object with the list `definition`")
    contexts: list[str] | None = None
    contexts_id: list[str] | None = None
    context_present: bool = Field(description="true or false")
    parser: Parser = Field(description="null, or the name of a psychscanner parser")
    chain_type: Literal["item", "trial", "task"] = Field(description="'item', 'trial' or 'task'")
    prefix: str = ""
    postfix: str = ""
    trial_parsers: list[Any] = Field(default_factory=list)


class TaskCard(CardHeader):
    """A card that passed every check."""

    items: dict[str, list[CardTrial]]
    """Label to turns, in the order of presentation."""
    notes: dict[str, Any]
    """The card's fields whose name begins with an underscore, carried along unread."""

    def pairs(self) -> list[WordPair]:
        """The tested pairs in the order of the test, named by the test trial; raises `CardError` if none."""
        turns = [trial for trials in self.items.values() for trial in trials]
        tests = [trial for trial in turns if isinstance(trial, PairTrial) and trial.phase == "test"]
        if not tests:
            raise CardError(
                f"The task card {self.taskname!r} is sound but has no paired associates: ps_primal and pal50 "
                f"need trials with phase ('encoding' or 'test'), word1, word2 and similarity."
            )
        return [
            WordPair(
                trcode=trial.trcode,
                level=level_of(trial.similarity),
                similarity=trial.similarity,
                cue=trial.word1,
                target=trial.word2,
            )
            for trial in tests
        ]


def load_card(path: Path | str) -> TaskCard:
    """The card in a JSON file; raises `CardError` (`StimulusError` when it cannot be read as text)."""
    path = Path(path).expanduser()
    raw = _read_object(path)
    if _is_n_back(raw):
        raise CardError(
            f"{path} is an n-back card: its blocks are objects of letters, not lists of trials with trcode "
            f"and stimulus, and neither ps_primal nor pal50 can run it."
        )
    notes = {key: value for key, value in raw.items() if key.startswith("_")}
    header, faults = check(CardHeader, {key: raw[key] for key in raw if key not in {"items", *notes}})
    turns, shape_faults = _turns(raw.get("items"))
    items: dict[str, list[CardTrial]] = {}
    faults += _context_faults(raw) + shape_faults
    for place, label, turn in turns:
        trial, trial_faults = check(PairTrial if _is_paired(turn) else CardTrial, turn, where=place)
        faults += trial_faults
        if trial is not None:
            items.setdefault(label, []).append(trial)
    if raw.get("chain_type") != "trial":
        faults += _code_faults(turns)
    faults += _pairing_faults(turns)
    if header is None or faults:
        raise CardError(listing(f"The task card {path} cannot be used", faults))
    return TaskCard(**dict(header), items=items, notes=notes)


class _Turn(NamedTuple):
    place: str
    label: str
    raw: dict[str, Any]


def _read_object(path: Path) -> dict[str, Any]:
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise CardError(f"{path} is larger than a task card may be ({MAX_BYTES // 1024**2} MiB).")
    text = read_text(path)
    try:
        raw = loads(text)
    except ValueError as error:
        raise CardError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(raw, dict):
        raise CardError(f"{path} holds {shown(raw)}; a task card is one JSON object.")
    return raw


def _is_n_back(raw: dict[str, Any]) -> bool:
    if "routines" in raw:
        return True
    items = raw.get("items")
    objects = isinstance(items, dict) and items and all(isinstance(item, dict) for item in items.values())
    return bool(objects) and "chain_type" not in raw and "instructions" not in raw


def _is_paired(turn: dict[str, Any]) -> bool:
    return not turn.keys().isdisjoint({"phase", "word1", "word2", "similarity"})


def _turns(items: object) -> tuple[list[_Turn], list[Fault]]:
    """The turns in the order of presentation, unread, and what is wrong with the lists that hold them."""
    if not isinstance(items, dict) or not items:
        found = "nothing" if items is None else shown(items)
        return [], [Fault("items", found, "an object of labels, each with its list of trials; not empty")]
    turns: list[_Turn] = []
    faults: list[Fault] = []
    for label, trials in items.items():
        if not isinstance(trials, list) or not trials:
            faults.append(Fault(f"items.{label}", shown(trials), "a list of trials, not empty"))
            continue
        for number, trial in enumerate(trials):
            place = f"items.{label}[{number}]"
            if isinstance(trial, dict):
                turns.append(_Turn(place, label, trial))
            else:
                faults.append(Fault(place, shown(trial), "an object with trcode and stimulus"))
    return turns, faults


def _context_faults(raw: dict[str, Any]) -> list[Fault]:
    if raw.get("context_present") is not True:
        return []
    names, ids = raw.get("contexts"), raw.get("contexts_id")
    if isinstance(names, list) and isinstance(ids, list) and len(names) == len(ids):
        return []
    return [
        Fault(
            "contexts_id",
            "nothing" if ids is None else shown(ids),
            "a list parallel to contexts, because context_present is true",
        )
    ]


def _code_faults(turns: list[_Turn]) -> list[Fault]:
    faults: list[Fault] = []
    first: dict[str, str] = {}
    for place, _, raw in turns:
        code = raw.get("trcode")
        if not isinstance(code, str) or code == _INSTRUCTION:
            continue
        if code in first:
            faults.append(Fault(f"{place}.trcode", f"{code!r}, as in {first[code]}", "a code used once"))
        else:
            first[code] = place
    return faults


def _pairing_faults(turns: list[_Turn]) -> list[Fault]:
    """Tests that disagree with what was studied. A turn with a faulty phase may be the study of its cue."""
    studies: dict[str, list[_Turn]] = {}
    tests: dict[str, list[_Turn]] = {}
    for turn in turns:
        cue = turn.raw.get("word1")
        if isinstance(cue, str):
            (tests if turn.raw.get("phase") == "test" else studies).setdefault(folded(cue), []).append(turn)
    faults: list[Fault] = []
    for cue, probes in tests.items():
        probe, again = probes[0], probes[1:]
        shown_cue = shown(probe.raw["word1"])
        faults += [
            Fault(f"{turn.place}.word1", f"{shown_cue}, as in {probe.place}", "a cue tested once") for turn in again
        ]
        studied = studies.get(cue, [])
        if len(studied) != 1:
            times = f"{shown_cue}, studied {len(studied)} times"
            faults.append(Fault(f"{probe.place}.word1", times, "a cue studied once"))
            continue
        for field, readable in (("word2", _readable_word), ("similarity", _readable_similarity)):
            was, now = studied[0].raw.get(field), probe.raw.get(field)
            if readable(was) != readable(now) and None not in (readable(was), readable(now)):
                allowed = f"{shown(was)}, as studied in {studied[0].place}"
                faults.append(Fault(f"{probe.place}.{field}", shown(now), allowed))
    return faults


def _readable_word(value: object) -> object:
    return folded(value) if isinstance(value, str) else None


def _readable_similarity(value: object) -> object:
    return value if isinstance(value, int | float) and 0 <= value <= 1 else None
