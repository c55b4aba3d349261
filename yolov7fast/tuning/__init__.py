"""Which flags are fastest on this machine: short interleaved runs, one flag after another."""
