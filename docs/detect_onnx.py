"""Detect with a file of `export.py --nms`, by onnxruntime and OpenCV alone: detect_onnx.py best.onnx in.jpg out.jpg"""

import json
import sys

import cv2
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
facts = session.get_modelmeta().custom_metadata_map
names, stride, (height, width) = json.loads(facts["names"]), int(facts["stride"]), json.loads(facts["size"])
image = cv2.imread(sys.argv[2])

# letterbox: the whole image, its proportions kept, in grey, up to a multiple of the stride
h, w = image.shape[:2]
ratio = min(height / h, width / w)
inner = round(w * ratio), round(h * ratio)
dw, dh = (width - inner[0]) % stride, (height - inner[1]) % stride
left, top = round(dw / 2 - 0.1), round(dh / 2 - 0.1)
border = [int(facts["padding"])] * 3
small = cv2.resize(image, inner, interpolation=cv2.INTER_LINEAR)
boxed = cv2.copyMakeBorder(small, top, dh - top, left, dw - left, cv2.BORDER_CONSTANT, value=border)[None]
place = np.array([boxed.shape[2] - w * ratio, boxed.shape[1] - h * ratio]) / 2  # of the image in the letterbox

if facts["layout"] == "NCHW":  # without --uint8: RGB planes of 0..1
    boxed = np.ascontiguousarray(boxed[..., ::-1].transpose(0, 3, 1, 2)).astype(np.float32) / np.float32(255)
feed = {"images": boxed}
if facts["kind"] != "yolo":  # DETR networks take where the image lies, too
    feed["content"] = np.array([[*place, w * ratio, h * ratio]], np.float32)
count, boxes, scores, classes = session.run(["num_dets", "det_boxes", "det_scores", "det_classes"], feed)

for box, score, label in zip(boxes[0, : count[0, 0]], scores[0], classes[0]):
    corners = ((box.reshape(2, 2) - place) / ratio).clip(0, [w, h]).round().astype(int).tolist()
    print(names[label], f"{score:.3f}", *corners[0], *corners[1])
    cv2.rectangle(image, corners[0], corners[1], (0, 200, 0), 2)
    cv2.putText(image, f"{names[label]} {score:.2f}", corners[0], cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 200, 0), 1)
cv2.imwrite(sys.argv[3], image)
print(f"detections: {count[0, 0]}, drawn in {sys.argv[3]}")
