"""Trains the default model; see the README beside this module."""
