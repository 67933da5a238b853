"""Interop tests wait for other programs most of the time, so files run beside each other, each in one process."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together, those of the scenarios by the version of the client."""
    for item in items:
        group = item.path.stem
        call = getattr(item, "callspec", None)
        if group == "test_rocketmq_java" and call is not None:
            group += f"-{call.params['version']}"
        item.add_marker(pytest.mark.xdist_group(group))
