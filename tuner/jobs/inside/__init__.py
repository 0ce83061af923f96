"""Jobs measured from inside, by the profiler that is in the plugin: what their ranks wrote, joined."""
