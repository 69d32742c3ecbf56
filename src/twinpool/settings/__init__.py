"""Frozen settings and where each value came from; knows no flag parser."""
