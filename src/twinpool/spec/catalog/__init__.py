"""Models known by name: published configs, parameter counts and checkpoint sizes, with sources.

Knows no bytes of pools and reads no file but its own table.
"""

from __future__ import annotations

from twinpool.spec.catalog.models import CATALOG, CatalogModel, find_model

__all__ = ["CATALOG", "CatalogModel", "find_model"]
