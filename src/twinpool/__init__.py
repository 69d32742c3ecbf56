"""twinpool: serve hybrid language models from a state pool and a KV pool, and size both.

This module knows the version and nothing else; import the packages below by name.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
