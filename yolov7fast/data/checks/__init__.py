"""Checks of a data set: what is wrong or unusual in its images, labels and classes, where, and the remedy."""
