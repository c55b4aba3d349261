"""Detect with a file of `export.py --nms`, by onnxruntime and OpenCV alone: detect_onnx.py best.onnx in.jpg out.jpg"""

import json
import sys

import cv2
import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
facts = session.get_modelmeta().custom_metadata_map
names, stride, free = json.loads(facts["names"]), int(facts["stride"]), json.loads(facts["free"])
height, width = json.loads(facts["size"])
image = cv2.imread(sys.argv[2])

# letterbox: the whole image, its proportions kept, grey around it up to a multiple of the stride (or the fixed size)
ratio = min(height / image.shape[0], width / image.shape[1])
inner = round(image.shape[1] * ratio), round(image.shape[0] * ratio)
dw, dh = width - inner[0], height - inner[1]
if "height" in free:
    dw, dh = dw % stride, dh % stride
left, top = round(dw / 2 - 0.1), round(dh / 2 - 0.1)
small = cv2.resize(image, inner, interpolation=cv2.INTER_LINEAR)
grey = [int(facts["padding"])] * 3
padded = cv2.copyMakeBorder(small, top, dh - top, left, dw - left, cv2.BORDER_CONSTANT, value=grey)[None]

if facts["layout"] == "NCHW":  # without --uint8: RGB planes of 0..1
    padded = padded[..., ::-1].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255)
feed = {"images": np.ascontiguousarray(padded)}
if "content" in [value.name for value in session.get_inputs()]:  # DETR networks: where the image lies
    feed["content"] = np.array([[dw / 2, dh / 2, image.shape[1] * ratio, image.shape[0] * ratio]], np.float32)
found = dict(zip(("num_dets", "boxes", "scores", "classes"), session.run(None, feed)))

for row in range(found["num_dets"][0, 0]):
    corners = (found["boxes"][0, row].reshape(2, 2) - [dw / 2, dh / 2]) / ratio
    (x1, y1), (x2, y2) = corners.clip(0, image.shape[1::-1]).round().astype(int).tolist()
    label = f"{names[found['classes'][0, row]]} {found['scores'][0, row]:.2f}"
    print(label, x1, y1, x2, y2)
    cv2.rectangle(image, (x1, y1), (x2, y2), (0, 200, 0), 2)
    cv2.putText(image, label, (x1, y1 - 4), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 200, 0), 1)
cv2.imwrite(sys.argv[3], image)
