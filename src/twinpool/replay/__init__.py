"""Virtual-time runs of the live scheduler and memory; imports no torch."""
