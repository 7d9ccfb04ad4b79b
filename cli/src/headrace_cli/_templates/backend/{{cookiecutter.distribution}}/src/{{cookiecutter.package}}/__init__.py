"""The Headrace backend {{ cookiecutter.backend }}."""
