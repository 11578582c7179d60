"""Helpers shared by several test folders: pytest puts `tests/` on the import path, hence `from support.x`."""
