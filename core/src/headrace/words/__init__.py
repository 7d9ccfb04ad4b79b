"""The words of core: a module per word, or family of words, which nothing else in core names.

The names in ``__all__`` of each module, an underscore before the module's name excepted, are words
that may stand in a configuration; ``S = Sequential`` makes an alias. What a word says of itself to
the planner and to the builder is in `headrace._plan.word.Word`.
"""
