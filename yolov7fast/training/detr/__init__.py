"""The DETR family: `family` puts it together; `optimization` and `profile` are its parts."""
