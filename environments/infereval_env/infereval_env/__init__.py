"""infereval_env: whether a model endorses the inferences that a domain's experts endorse.

The instrument in plain Python: `formats` (files), `readings` (what measurement sees of a run), `measures`,
`guard`, `retest`, `equivalence`, `monotonicity`, `structure`, `audit`, and `commands` (`mindscope infereval
…`).
"""
