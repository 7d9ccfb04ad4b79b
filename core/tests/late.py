"""A container that builds its children itself, as Fallback of headrace-flow."""

from dataclasses import replace

import headrace
from headrace.words import Bracket


class Either(headrace.Backend):
    """Runs the first child that can be built."""

    takes = (1, None)
    bracket = Bracket(late=True)

    def init(self, options, context):
        errors = []
        for place, child in enumerate(context.children):
            try:
                self.child = child.build()
            except Exception as error:
                errors.append(error)
            else:
                self.min, self.max = self.child.min, self.child.max
                self.bracket = replace(self.bracket, keys_of_child=place)
                return
        raise errors[0]

    def forward(self, batch):
        return self.child(batch)
