# SPDX-License-Identifier: Apache-2.0
"""What agents (helpers.py) have instead of pytest, whose import takes longer than all else that they do: the decorators of
the test files from which they have functions. Whatever else is asked of it is asked of pytest."""
import importlib
import sys
import types


class Decorator:
    """Leaves what it decorates as it is, with arguments or without; so do its attributes."""

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and callable(args[0]) and not kwargs else self

    def __getattr__(self, name):
        return self


class NoPytest(types.ModuleType):
    mark = fixture = param = hookimpl = Decorator()

    def __getattr__(self, name):
        if sys.modules["pytest"] is self:
            del sys.modules["pytest"]
        return getattr(importlib.import_module("pytest"), name)


def install():
    sys.modules["pytest"] = NoPytest("pytest")
