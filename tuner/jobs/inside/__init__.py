"""Reads and judges jobs that were measured from inside, by the profiler in the plugin."""
