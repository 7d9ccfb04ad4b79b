"""The words of core, a module per word or family of words.

The names in ``__all__`` of each are words that may stand in a configuration. ``S = Sequential``
makes an alias. What a word says of itself to the planner and to the builder is in
`headrace._language.plan.word.Word`.
"""
