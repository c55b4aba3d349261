"""The data doctor: what is odd or wrong in a data set, where, and what to do about it."""
