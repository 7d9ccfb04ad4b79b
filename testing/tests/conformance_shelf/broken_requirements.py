"""A backend that needs a library which its distribution does not require.

For the test, the package of the shelf belongs to a distribution that requires headrace and pytest.
"""

from __future__ import annotations

from conformance_shelf.labels import breaks
from conformance_shelf.perfect import Perfect


@breaks("imports-lazily")
class NeedsWhatItsDistributionDoesNotRequire(Perfect):
    def init(self, options, context):
        import filelock

        self.library = filelock
        super().init(options, context)
