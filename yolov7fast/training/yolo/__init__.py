"""The YOLOv7 family: `family` puts it together; `network`, `optimization` and `checkpoints` are its parts."""
