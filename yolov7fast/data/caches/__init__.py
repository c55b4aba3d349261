"""Results that are computed once for a data set and stored: checked labels, decoded images."""
