"""The commands, one module for each; `headrace_observe.hooks` lists them."""
