"""The language: what a configuration says, checked and planned, and how backends are built from it.

It ends in a blueprint (`headrace.blueprint`), from which `headrace._run` starts. In reading order:

========== ========================================================================================
expression what the text ``S[A(x=1),(or)B]`` says: one parser, text to tree and back
config     files and dicts, sorted by node; the keys
contract   what authors of backends read: `headrace.Backend`, its context and its options
registry   name to class, and the distribution behind a name, lazily
plan       the meaning of every name and the value of every option; nothing is built
building   backends, instances, stores and the wrappers around them. `compose` gives the blueprint
words      core's own words: a file each, from plan to batch
========== ========================================================================================
"""
