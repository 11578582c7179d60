"""mindscope: cognitive paradigms on language models as evaluation and RL environments.

This package holds what two environments share, and the white-box module for local models. Importing it loads
neither torch nor verifiers; each room (`mindscope.answers`, `mindscope.whitebox`, `mindscope.frameworks`, …)
is imported by name when it is needed.
"""

from importlib.metadata import version

__version__ = version("mindscope")
