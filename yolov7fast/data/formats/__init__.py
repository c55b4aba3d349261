"""Readers and writers of data sets: YOLO, COCO JSON, Pascal VOC and CSV, as folders, zip archives or single files."""
