"""The backend in a pipeline, as users run it."""

import headrace

from headrace_retry import conformance


def test_many_requests_at_once_each_get_a_result():
    kit = conformance.RetryConformance()
    with headrace.pipe({"backend": kit.expression, **kit.options, "max": 4}) as pipe:
        answers = pipe([kit.make_item(k) for k in range(16)])
    assert all("result" in answer for answer in answers)
