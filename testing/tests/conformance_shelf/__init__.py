"""Backends that keep every rule of the contract, and backends that break exactly one.

Nothing here is collected by itself: the tests of the kit judge each of them.
"""
