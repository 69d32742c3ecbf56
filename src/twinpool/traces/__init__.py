"""Recorded workloads: schema, readers, statistics; knows no scheduler."""
