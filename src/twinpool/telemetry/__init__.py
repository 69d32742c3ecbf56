"""The metric table and its exposition; reads snapshots, never internals."""
