"""The warnings of ``check`` and ``explain``: rules on what a configuration may say, but hardly means, and their codes."""
