"""The one exception whose message is written for the person at the keyboard."""


class MindscopeError(Exception):
    """Something the user can put right. The message says what was wrong, where, and what would be right."""
