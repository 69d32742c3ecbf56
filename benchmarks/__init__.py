"""Speed and memory, as ratios within one run; nothing here is timed by a test."""
