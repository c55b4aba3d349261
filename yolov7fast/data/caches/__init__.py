"""What is worked out of a data set once and kept: labels, decoded images."""
