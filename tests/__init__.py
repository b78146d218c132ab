"""Tests; `tests.support` has their shared helpers."""
