"""Surveys to recruit analysts with: a Qualtrics file or a Google Apps Script, and the mapping that reads it
back.

    mapping = make_mapping(benchmark, "support", "thin-v1")                  # from `surveys`
    text = qualtrics_form(benchmark, mapping, "support", title="Kettles")    # .qsf, imported as a new survey
    text = google_form(benchmark, mapping, "support", title="Kettles")       # .gs, run on script.google.com

Every item is one page: the question, three choices whose first word is the label, and room for a rationale.
Ids are hashes of the benchmark's id, so an export repeated is the same file.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from mindscope.errors import MindscopeError

from infereval_env.formats import Benchmark, Item
from infereval_env.surveys import MappingRow
from infereval_env.verdicts import QuestionForm
from infereval_env.wording import conclusion_context, expressions

EXPERTISE = "What experience do you have with the subject of these questions? A sentence or two is enough."
WHY = "If you like, say briefly what decided you."
_UNDATED = "2000-01-01 00:00:00"
_OPTIONS = {
    "BackButton": "false",
    "SaveAndContinue": "true",
    "SurveyProtection": "PublicSurvey",
    "BallotBoxStuffingPrevention": "false",
    "NoIndex": "Yes",
    "SurveyExpiration": "None",
    "SurveyTermination": "DefaultMessage",
    "ProgressBarDisplay": "None",
    "PartialData": "+1 week",
}
CHOICES: dict[QuestionForm, tuple[str, str, str]] = {
    "support": (
        "Good \u2014 I would draw this conclusion",
        "Bad \u2014 I would not draw it",
        "Abstain \u2014 this cannot be judged",
    ),
    "coherence": (
        "Coherent \u2014 one can hold all of this",
        "Incoherent \u2014 one cannot hold all of this",
        "Unclear \u2014 this cannot be judged",
    ),
}


def question(benchmark: Benchmark, item: Item, form: QuestionForm) -> str:
    """What a respondent reads. Raises MindscopeError for `support` unless the item has one conclusion."""
    supposed = _listed(benchmark, item.premises)
    if form == "support":
        if len(item.conclusions) != 1:
            raise MindscopeError(
                f"Item {item.id!r} has {len(item.conclusions)} conclusions, and the question form 'support' "
                "asks about exactly one. Use 'coherence'."
            )
        concluded = conclusion_context(benchmark, item)
        return f"Suppose that:\n{supposed}\n\nWould you conclude, unless told more, that {concluded}?"
    denied = f"\n\nand denies:\n{_listed(benchmark, item.conclusions)}" if item.conclusions else ""
    return f"Someone holds:\n{supposed}{denied}\n\nCan one hold this position as a whole?"


def _listed(benchmark: Benchmark, ids: Sequence[str]) -> str:
    return "\n".join(f"- {text}" for text in expressions(benchmark, ids)) or "- nothing in particular"


def google_form(benchmark: Benchmark, mapping: Sequence[MappingRow], form: QuestionForm, *, title: str) -> str:
    """A Google Apps Script that makes the form; its items keep their order, as Google shuffles all or
    none."""
    items = {item.id: item for item in benchmark.items}
    lines = [
        f"// Survey on benchmark {json.dumps(benchmark.id)}. Run makeForm() on script.google.com.",
        "function makeForm() {",
        f"  var form = FormApp.create({json.dumps(title)});",
        "  form.setProgressBar(true).setCollectEmail(false);",
        "  form.addParagraphTextItem()",
        f"      .setTitle('Your expertise').setHelpText({json.dumps(EXPERTISE)});",
    ]
    for number, row in enumerate(mapping, start=1):
        asked = question(benchmark, items[row.item_id], form)
        lines += [
            "  form.addPageBreakItem()",
            f"      .setTitle('Item {number} of {len(mapping)}').setHelpText({json.dumps(asked)});",
            f"  form.addMultipleChoiceItem().setTitle('Item {number} verdict')",
            f"      .setChoiceValues({json.dumps(list(CHOICES[form]))}).setRequired(true);",
        ]
        if row.rationale_data_export_tag:
            lines += [
                f"  form.addParagraphTextItem().setTitle('Item {number} rationale')",
                f"      .setHelpText({json.dumps(WHY)});",
            ]
    lines += ["  Logger.log(form.getPublishedUrl());", "  Logger.log(form.getEditUrl());", "}"]
    return "\n".join(lines) + "\n"


def qualtrics_form(
    benchmark: Benchmark,
    mapping: Sequence[MappingRow],
    form: QuestionForm,
    *,
    title: str,
    randomise: bool = True,
) -> str:
    """A Qualtrics survey file (.qsf): the expertise question, then a block an item, shuffled unless told not
    to."""
    items = {item.id: item for item in benchmark.items}

    def hashed(kind: str, what: str = "") -> str:
        return f"{kind}_{hashlib.sha256(f'{benchmark.id}|{kind}|{what}'.encode()).hexdigest()[:15]}"

    questions = [_text_question("QID1", "expertise", EXPERTISE)]
    blocks = [_block("Default", "Introduction", hashed("BL", "introduction"), ["QID1"])]
    for row in mapping:
        asked = question(benchmark, items[row.item_id], form)
        added = [_choice_question(f"QID{len(questions) + 1}", row.verdict_data_export_tag, asked, CHOICES[form])]
        if row.rationale_data_export_tag:
            added.append(_text_question(f"QID{len(questions) + 2}", row.rationale_data_export_tag, WHY))
        questions += added
        ids = [added_question["QuestionID"] for added_question in added]
        blocks.append(_block("Standard", f"Item {row.item_id}", hashed("BL", row.item_id), ids))
    shown = [{"ID": block["ID"], "Type": "Block", "FlowID": f"FL_{i}"} for i, block in enumerate(blocks, start=2)]
    if randomise:
        shuffled = {
            "Type": "BlockRandomizer",
            "FlowID": f"FL_{len(shown) + 2}",
            "SubSet": len(shown) - 1,
            "EvenPresentation": False,
            "Flow": [{**step, "Type": "Standard"} for step in shown[1:]],
        }
        shown = [shown[0], shuffled]
    flow = {"Type": "Root", "FlowID": "FL_1", "Flow": shown, "Properties": {"Count": len(blocks) + 2}}
    trash = _block("Trash", "Trash / Unused Questions", hashed("BL", "trash"), [])
    survey, owner, responses = hashed("SV"), hashed("UR"), hashed("RS")
    elements = [
        ("BL", "Survey Blocks", None, [*blocks, trash]),
        ("FL", "Survey Flow", None, flow),
        ("SO", "Survey Options", None, _OPTIONS),
        ("SCO", "Scoring", None, {"ScoringCategories": [], "ScoringCategoryGroups": []}),
        ("PROJ", "CORE", None, {"ProjectCategory": "CORE", "SchemaVersion": "1.1.0"}),
        ("STAT", "Survey Statistics", None, {"MobileCompatible": True, "ID": "Survey Statistics"}),
        ("QC", "Survey Question Count", str(len(questions)), None),
        ("RS", responses, "Default Response Set", None),
        *(("SQ", asked["QuestionID"], asked["QuestionDescription"], asked) for asked in questions),
    ]
    document = {
        "SurveyEntry": {
            "SurveyID": survey,
            "SurveyName": title,
            "SurveyOwnerID": owner,
            "SurveyBrandID": "mindscope",
            "SurveyLanguage": "EN",
            "SurveyActiveResponseSet": responses,
            "SurveyStatus": "Inactive",
            "SurveyCreationDate": _UNDATED,
            "CreatorID": owner,
            "LastModified": _UNDATED,
        },
        "SurveyElements": [
            {
                "SurveyID": survey,
                "Element": element,
                "PrimaryAttribute": primary,
                "SecondaryAttribute": secondary,
                "TertiaryAttribute": "1.1.0" if element == "PROJ" else None,
                "Payload": payload,
            }
            for element, primary, secondary, payload in elements
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _block(kind: str, description: str, block_id: str, question_ids: list[str]) -> dict[str, Any]:
    held = [{"Type": "Question", "QuestionID": question_id} for question_id in question_ids]
    return {"Type": kind, "Description": description, "ID": block_id, "BlockElements": held}


def _question(question_id: str, tag: str, text: str, *, required: bool, **shape: Any) -> dict[str, Any]:
    return {
        "QuestionText": text,
        "DataExportTag": tag,
        "QuestionID": question_id,
        "QuestionDescription": tag,
        "Configuration": {"QuestionDescriptionOption": "UseText"},
        "Validation": {"Settings": {"ForceResponse": "ON" if required else "OFF", "Type": "None"}},
        "Language": [],
        "DataVisibility": {"Private": False, "Hidden": False},
        **shape,
    }


def _text_question(question_id: str, tag: str, text: str) -> dict[str, Any]:
    return _question(question_id, tag, text, required=False, QuestionType="TE", Selector="ESTB")


def _choice_question(question_id: str, tag: str, text: str, choices: Sequence[str]) -> dict[str, Any]:
    numbered = {str(number): {"Display": choice} for number, choice in enumerate(choices, start=1)}
    return _question(
        question_id,
        tag,
        text,
        required=True,
        QuestionType="MC",
        Selector="SAVR",
        SubSelector="TX",
        Choices=numbered,
        ChoiceOrder=list(numbered),
        NextChoiceId=len(choices) + 1,
        NextAnswerId=1,
    )
