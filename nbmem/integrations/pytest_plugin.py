"""What every pytest loads that runs beside nbmem; its hooks are in pytest_hooks.py.

A pytest that does not know what they are made of is left alone: a test run must not fail because
nbmem is installed.
"""

import pytest

OLDEST = (8,)
"""Wrappers of the new kind are pytest 8's:
https://docs.pytest.org/en/8.0.x/changelog.html#pytest-8-0-0rc1-2023-12-30"""

if getattr(pytest, "version_tuple", ()) >= OLDEST:
    pytest_plugins = ["nbmem.integrations.pytest_hooks"]
