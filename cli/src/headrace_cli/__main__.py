"""``python -m headrace_cli``: the command line, as ``headrace`` and ``python -m headrace``."""

from headrace_cli import main

if __name__ == "__main__":
    main()
