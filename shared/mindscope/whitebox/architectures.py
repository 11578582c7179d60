"""Where the parts of a decoder-only transformer are, by attribute path, for each family of Hugging Face
models.

    layout = find_layout(model)
    part(model, layout.blocks)[3]       # the fourth block, as a torch module
    part(traced, layout.blocks)[3]      # the same, as nnsight's handle on it

Every block's output is one tensor [batch, position, d_model]: the residual stream after it. The logits are
`head(final_norm(residual))`, and then `c * tanh(logits / c)` where the model caps them at c.
"""

from dataclasses import astuple, dataclass
from operator import attrgetter
from typing import Any

from mindscope.errors import MindscopeError


@dataclass(frozen=True)
class Layout:
    """Dotted attribute paths, from the `...ForCausalLM` object down."""

    blocks: str
    final_norm: str
    head: str
    embedding: str


LAYOUTS = (
    # Llama, Mistral, Qwen 2 and 3, Gemma 2 and 3, OLMo 2 and 3, and those that took over their shape
    Layout("model.layers", "model.norm", "lm_head", "model.embed_tokens"),
    # the text side of image-and-text models, such as Gemma 3 from 4B on
    Layout(
        "model.language_model.layers",
        "model.language_model.norm",
        "lm_head",
        "model.language_model.embed_tokens",
    ),
    # GPT-2
    Layout("transformer.h", "transformer.ln_f", "lm_head", "transformer.wte"),
    # GPT-NeoX, with the two names its head has had
    Layout("gpt_neox.layers", "gpt_neox.final_layer_norm", "lm_head", "gpt_neox.embed_in"),
    Layout("gpt_neox.layers", "gpt_neox.final_layer_norm", "embed_out", "gpt_neox.embed_in"),
)

_LOGIT_SCALES = ("logit_scale", "logits_scaling", "lm_head_multiplier")


def find_layout(model: Any) -> Layout:
    """The layout whose four paths all exist in `model`.

    Raises MindscopeError when none does, or when the model scales its logits after the head, which would make
    a reading through norm and head alone silently wrong.
    """
    name = type(model).__name__
    layout = next((one for one in LAYOUTS if all(_has(model, path) for path in astuple(one))), None)
    if layout is None:
        looked_for = "; or ".join(", ".join(astuple(one)) for one in LAYOUTS)
        raise MindscopeError(
            f"{name} is an architecture that mindscope does not know: looked for blocks, final norm, head "
            f"and embedding at {looked_for}"
        )
    config = model.config.get_text_config()
    for scale in _LOGIT_SCALES:
        if getattr(config, scale, 1) not in (None, 1):
            raise MindscopeError(
                f"{name} scales its logits after the head (config.{scale} = {getattr(config, scale)}), which "
                "mindscope's read-outs do not reproduce; use a model without that scale"
            )
    return layout


def part(root: Any, path: str) -> Any:
    """What lies at a layout's `path` below `root`, a model or nnsight's wrapper of one."""
    return attrgetter(path)(root)


def _has(root: Any, path: str) -> bool:
    try:
        part(root, path)
    except AttributeError:
        return False
    return True
