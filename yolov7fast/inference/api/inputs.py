"""What a detector takes from Python: paths, addresses, PIL images, arrays, tensors, and lists of these."""

import io
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch

from yolov7fast.core.errors import UserError
from yolov7fast.data.image_io import read_image


class InputImage(NamedTuple):
    """One image as it was given."""

    name: str  # file name, or image0, image1, ...
    bgr: np.ndarray  # uint8 (H, W, 3), as OpenCV reads files


def input_images(given: Any) -> list[InputImage]:
    """Every image in what the caller gave, in order. Arrays and tensors are RGB."""
    return [_input_image(item, index) for index, item in enumerate(_listed(given))]


def _listed(given: Any) -> Iterator[Any]:
    if isinstance(given, torch.Tensor | np.ndarray) and given.ndim == 4:
        yield from given
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        for item in given:
            yield from _listed(item)
    else:
        yield given


def _input_image(item: Any, index: int) -> InputImage:
    if isinstance(item, str) and item.lower().startswith(("http://", "https://")):
        return InputImage(Path(item.split("?")[0]).name or f"image{index}.jpg", _download(item))
    if isinstance(item, str | Path):
        return InputImage(Path(item).name, read_image(str(item)))
    name = Path(getattr(item, "filename", "") or f"image{index}.jpg").name
    if isinstance(item, torch.Tensor):
        return InputImage(name, _from_tensor(item))
    if isinstance(item, np.ndarray):
        return InputImage(name, _from_array(item))
    if hasattr(item, "convert") and hasattr(item, "size"):  # an image of PIL
        return InputImage(name, _from_pil(item))
    raise UserError(
        f"image {index} is a {type(item).__name__}; give a path, an address, a PIL image, an array (H, W, 3) or a "
        "tensor (3, H, W) of RGB values"
    )


def _from_pil(image: Any) -> np.ndarray:
    from PIL import ImageOps

    return _from_array(np.asarray(ImageOps.exif_transpose(image).convert("RGB")))


def _from_array(array: np.ndarray) -> np.ndarray:
    """RGB (H, W, 3), (3, H, W), grey (H, W) or with alpha (H, W, 4) -> BGR (H, W, 3)."""
    if array.ndim == 3 and array.shape[0] in (1, 3) and array.shape[2] not in (1, 3, 4):
        array = array.transpose(1, 2, 0)
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 3, 4) or 0 in array.shape:
        raise UserError(f"an image array has the shape {array.shape}; it must be (H, W, 3) RGB")
    if array.dtype != np.uint8:
        raise UserError(f"an image array is {array.dtype}; it must be uint8 of 0..255")
    array = np.repeat(array, 3, 2) if array.shape[2] == 1 else array[..., :3]
    return np.ascontiguousarray(array[..., ::-1])


def _from_tensor(tensor: torch.Tensor) -> np.ndarray:
    """RGB (3, H, W), uint8 or floats of 0..1 -> BGR (H, W, 3)."""
    if tensor.ndim != 3 or tensor.shape[0] != 3:
        raise UserError(
            f"an image tensor has the shape {tuple(tensor.shape)}; it must be (3, H, W), or a batch of them"
        )
    if tensor.is_floating_point():
        tensor = (tensor.detach().float() * 255).round().clamp(0, 255).to(torch.uint8)
    return _from_array(tensor.detach().cpu().permute(1, 2, 0).numpy())


def _download(address: str) -> np.ndarray:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            content = io.BytesIO(answer.read())
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise UserError(f"{address} cannot be fetched: {error}") from None
    image = cv2.imdecode(np.frombuffer(content.getvalue(), np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise UserError(f"{address} is no image that can be decoded")
    return image
