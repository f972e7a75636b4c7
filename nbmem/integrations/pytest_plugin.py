"""Load the hooks of pytest_hooks.py where pytest is new enough.

Every pytest in an environment with nbmem loads this module. An older pytest without such hooks is
not affected: a test run must not fail because nbmem is installed.
"""

import pytest

OLDEST = (8,)
"""Wrappers in this form require pytest 8:
https://docs.pytest.org/en/8.0.x/changelog.html#pytest-8-0-0rc1-2023-12-30"""

if getattr(pytest, "version_tuple", ()) >= OLDEST:
    pytest_plugins = ["nbmem.integrations.pytest_hooks"]
