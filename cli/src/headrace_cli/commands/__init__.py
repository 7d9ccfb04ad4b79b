"""The commands of ``headrace``, each in the module of its name."""
