"""The index space of both pools: allocators, radix tree, checkpoints, eviction; knows no tensor."""
