"""Data sets as people bring them: YOLO folders, COCO JSON, Pascal VOC, CSV; read, recognised, converted, written."""
