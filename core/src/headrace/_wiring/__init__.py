"""What only configurations that wire themselves need: nodes with `init` or `node_entrypoint`, and instances with names.

The planner asks which nodes wire themselves (`Planner.wired_nodes`), and of a name whether it stands for an instance and not
for a node. Where either is so, it loads `planning` by its name, as words are loaded. No module imports this package, and
all the rest of core can be read without it.

`words` are the words, and `building` makes what their plans say.
"""
