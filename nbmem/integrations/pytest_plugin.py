"""Load the hooks of pytest_hooks.py where pytest is new enough.

Every pytest that runs beside nbmem loads this module. An older pytest that does not
have such hooks is left alone: a test run must not fail because nbmem is installed.
"""

import pytest

OLDEST = (8,)
"""Wrappers of the new kind are pytest 8's:
https://docs.pytest.org/en/8.0.x/changelog.html#pytest-8-0-0rc1-2023-12-30"""

if getattr(pytest, "version_tuple", ()) >= OLDEST:
    pytest_plugins = ["nbmem.integrations.pytest_hooks"]
