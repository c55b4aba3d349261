"""`yolov7fast check`: is this machine fit for training, and are its results right?"""
