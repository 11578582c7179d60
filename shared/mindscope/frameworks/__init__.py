"""Thin adapters between paradigms and the frameworks that run them. Each module is imported by name.

- `legacy`: verifiers up to 0.3 (`load_environment`, `Rubric`).
- `v1`: the verifiers v1 API (0.3.1's `eval`, 0.4's `vf-eval`, prime-rl).
"""
