"""Sections of the report, one module each.

Each module turns results into one figure or table of the page.
"""
