"""Local models with their inside in reach. Needs the extra `whitebox`, and imports torch.

`model` wraps a Hugging Face causal language model, `scoring` says how probable it finds a continuation, `packing`
reads many prompts that begin alike, `architectures` names its parts, and `worker` is the one thread in which any
model runs.
"""

# nnsight gives every object a `save`, after which anyio's socket module can no longer be imported; so it comes first.
from anyio.abc import SocketAttribute as SocketAttribute
