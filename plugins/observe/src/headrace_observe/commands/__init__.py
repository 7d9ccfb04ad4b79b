"""The commands, a module each; `headrace_observe.hooks` lists them."""
