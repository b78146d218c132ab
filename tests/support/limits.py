"""Limits of this process that simulate a full disk."""

from contextlib import contextmanager

import pytest


@contextmanager
def limited(size):
    """Let this process write no file of more than `size` bytes."""
    resource = pytest.importorskip("resource", reason="there are no file size limits")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
