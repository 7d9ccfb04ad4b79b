"""The backends of core: containers, wiring words and the words of scheduling."""
