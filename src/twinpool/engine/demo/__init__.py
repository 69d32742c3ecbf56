"""The demo model: a small hybrid checkpoint, built on the spot, for the first minute.

Its weights are untrained; it exists so that everything else can be tried without a download. Knows
no tensors and no engine: it writes a folder in Hugging Face layout and answers with its path.
"""

from twinpool.engine.demo.folder import DEMO_VERSION, default_cache_dir, ensure

__all__ = ["DEMO_VERSION", "default_cache_dir", "ensure"]
