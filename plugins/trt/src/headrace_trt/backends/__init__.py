"""The backends of this plugin, with their options and base class."""
