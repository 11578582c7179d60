"""Local models with their inside in reach. Needs the extra `whitebox`, and imports torch.

`model` wraps a Hugging Face causal language model, `scoring` says how probable it finds a continuation,
`architectures` names its parts, and `worker` is the one thread in which any model runs.
"""
