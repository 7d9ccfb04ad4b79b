import pytest

import headrace


@pytest.fixture
def registered():
    from headrace_flow.alike import Alike
    from headrace_flow.budget import Budget

    headrace.register("Alike", Alike, replace=True)
    headrace.register("Budget", Budget, replace=True)
