"""Paired associates: word pairs, task cards, and what a recalled word was.

- `pairs`: the project's own word pairs (`data/pal50`).
- `cards`: psychscanner task cards, read strictly.
- `recall`: one answer to one cue, classified.
"""
