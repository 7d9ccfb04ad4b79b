"""Backends whose class, options or docstring break one rule each."""

from __future__ import annotations

import inspect

from pydantic import BaseModel, ConfigDict, Field

import headrace
from conformance_shelf.labels import breaks, broken, documented
from conformance_shelf.perfect import Perfect
from headrace.words import Bracket, Place

# resolves

broken("resolves", "MisspeltName", expression="Perfectt(3)")
broken("resolves", "MisspeltOption", expression="Perfect(3)", options={"factro": 3})
broken("resolves", "OptionOfAnotherType", expression="Perfect(factor=much)")
broken("resolves", "NoExpression", expression="Perfect(3")
broken("resolves", "ExpressionIsNone", expression=None)


# attributes


@breaks("attributes")
class WritesAList(Perfect):
    writes = ["result"]  # noqa: RUF012


@breaks("attributes")
class RerunIsAProperty(Perfect):
    rerun = property(lambda self: True)


@breaks("attributes")
class PrefixesAreAList(Perfect):
    bracket = Bracket(prefixes=["or"])


@breaks("attributes")
class StandsNowhere(Perfect):
    place = Place(stands="first")


@breaks("attributes")
class WaitsForNoOption(Perfect):
    place = Place(waits_while="queue {queue} is full")


# methods


@breaks("methods")
class InitIsAsynchronous(Perfect):
    factor = 2.0

    async def init(self, options, context):
        """Nobody awaits it."""


@breaks("methods")
class WarmUpIsAGenerator(Perfect):
    def warm_up(self):
        yield from ()


@breaks("methods")
class CloseTakesATimeout(Perfect):
    def close(self, timeout=None, *, force):
        """Nobody says force."""


@breaks("methods")
class EnterNeedsAnObject(Perfect):
    def enter(self, request):
        """Be called on the class, without self."""


# private-names


@breaks("private-names")
class InitSetsTheNode(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self._pad = "edge"


@breaks("private-names")
class NamesAHelperAsCoreDoes(Perfect):
    def _last_label(self, request):
        return "cat"


# options


class UsesItsOptions(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.all = dict(options)


@breaks("options-described")
class OptionWithoutDescription(UsesItsOptions):
    class Options(Perfect.Options):
        """How much."""

        quiet: bool = False


@breaks("options-described")
class OptionWithoutUnit(UsesItsOptions):
    class Options(Perfect.Options):
        """How much."""

        delay: float = Field(0.0, description="The delay before it.")


class Window(headrace.Options):
    """A part of a curve."""

    begin: float = 0.0


@breaks("options-described")
class OptionsOfATableWithoutDescription(UsesItsOptions):
    class Options(Perfect.Options):
        """How much."""

        windows: dict[str, Window | None] = Field({}, description="Parts of the curve, by name.")


class AnyWindow(BaseModel):
    """A part of a curve."""

    begin: float = Field(0.0, description="Where it begins, in seconds.")


@breaks("options-strict")
class TableTakesAnything(UsesItsOptions):
    class Options(Perfect.Options):
        """How much."""

        window: AnyWindow = Field(AnyWindow(), description="A part of the curve.")


@breaks("options-strict")
class OptionsTakeAnything(Perfect):
    class Options(Perfect.Options):
        """How much."""

        model_config = ConfigDict(extra="ignore")


@breaks("options-strict")
class OptionsCanBeChanged(Perfect):
    class Options(Perfect.Options):
        """How much."""

        model_config = ConfigDict(frozen=False)


@breaks("options-strict")
class PositionalOfNoOption(Perfect):
    class Options(Perfect.Options):
        """How much."""

        positional = ("factor", "faktor")


class Curve:
    """What JSON cannot describe."""


@breaks("options-schema")
class OptionOfAnyClass(UsesItsOptions):
    class Options(Perfect.Options):
        """How much."""

        curve: Curve = Field(Curve(), description="The curve.")


@breaks("options-schema", expression="DefaultOfAnotherType(digits=2)")
class DefaultOfAnotherType(UsesItsOptions):
    class Options(Perfect.Options):
        """How much."""

        digits: int = Field("two", description="How many digits (a number).")


# items


class _Counting:
    count = 0


def never_the_same(self, k):
    _Counting.count += 1
    return {"data": k + _Counting.count}


def the_same_object(self, k, item={"data": 1}):  # noqa: B006
    return item


broken("items", "NeverTheSame", expression="Perfect", make_item=never_the_same)
broken("items", "TheSameDict", expression="Perfect", make_item=the_same_object)
broken("items", "AllEqual", expression="Perfect", make_item=lambda self, k: {"data": 7})
broken("items", "NoData", expression="Perfect", make_item=lambda self, k: {"number": k})
broken("items", "NoDict", expression="Perfect", make_item=lambda self, k: k)


# docstrings


GOOD = inspect.getdoc(Perfect) or ""


@breaks("docstring-sections")
class NoDocstring(Perfect):
    __doc__ = ""


@breaks("docstring-sections")
@documented(GOOD[: GOOD.index("Source:")])
class NoSource(Perfect):
    pass


@breaks("docstring-sections")
@documented(
    GOOD.replace("Raises:\n    InputError: ``data`` is missing or no number.\n", "Raises:\n")
)
class EmptyRaises(Perfect):
    pass


@breaks("docstring-keys")
@documented(GOOD.replace("    data: A number", "    data: Any.\n    mask: A number"))
class DocumentsAKeyItDoesNotRead(Perfect):
    pass


@breaks("docstring-keys")
@documented(GOOD.replace("    result: The number", "    product: The number"))
class DocumentsAnotherKey(Perfect):
    pass


@breaks("docstring-batch")
@documented(GOOD.replace("1 or more;", "1 to 8;"))
class DocumentsAnotherRange(Perfect):
    pass


@breaks("docstring-batch")
@documented(GOOD.replace("1 or more; items", "Items"))
class DocumentsNoRange(Perfect):
    pass


@breaks("docstring-batch")
class NarrowsItsRangeInInit(Perfect):
    def init(self, options, context):
        super().init(options, context)
        self.max = 8


@breaks("docstring-raises")
@documented(GOOD.replace("InputError: ``data`` is missing or no number.", "Nothing."))
class DocumentsNoError(Perfect):
    pass
