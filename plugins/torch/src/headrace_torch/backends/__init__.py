"""The backends of this plugin: a module for each subject, with their options and base classes."""
