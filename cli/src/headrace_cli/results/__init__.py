"""The results of ``headrace run``: on stdout, on a terminal, in a file with a line for each input, or in files."""
