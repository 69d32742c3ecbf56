"""Model families as wiring over shared blocks, and the loader; knows no scheduler."""
