"""Families of detectors: `registry` knows them by name, `base` holds what they do alike, each has a folder."""
