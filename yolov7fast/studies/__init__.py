"""A study: the same training with each combination of some settings, at equal epochs and equal time, and its report."""
