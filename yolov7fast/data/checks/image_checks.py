"""Checks of image files: what one look at each of them says."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from yolov7fast.data.checks.findings import Findings
from yolov7fast.data.formats.samples import Sample
from yolov7fast.data.image_facts import MISSING, TOO_LARGE, TRUNCATED, UNREADABLE, loaded_sizes
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.data.labels import MIN_SIDE
from yolov7fast.data.near_duplicates import exact_groups, groups_of, near_pairs

TINY_SIDE = 32  # pixels: the largest stride
HUGE_PIXELS = 25_000_000
SUFFIXES = {"jpeg": ("jpg", "jpeg", "mpo"), "tiff": ("tif", "tiff", "dng"), "mpo": ("jpg", "jpeg", "mpo")}
ROTATED = {2: "mirrored", 3: "turned by 180 degrees", 4: "mirrored upside down", 5: "mirrored and turned"}
ROTATED |= {6: "turned by 90 degrees", 7: "mirrored and turned", 8: "turned by 270 degrees"}
FEW_BITS = 14  # values of a 16-bit image that need no more bits leave the upper quarter of the range empty


def check_images(samples: Sequence[Sample], facts: np.ndarray, found: Findings) -> None:
    """facts: FACTS (n,) of the samples' images, in order."""
    for state, check in ((MISSING, "missing image"), (UNREADABLE, "unreadable image"), (TRUNCATED, "truncated image")):
        for i in np.flatnonzero(facts["state"] == state).tolist():
            found.add(check, samples[i].image, text=facts["error"][i].decode(errors="replace"), image=i)
    seen = np.flatnonzero(facts["width"] > 0)
    width, height = facts["width"].astype(np.int64), facts["height"].astype(np.int64)
    for i in seen[np.minimum(width, height)[seen] < TINY_SIDE].tolist():
        small = min(width[i], height[i]) < MIN_SIDE
        check = "image under 10 pixels" if small else "tiny image"
        found.add(check, samples[i].image, text=f"{width[i]} x {height[i]} pixels", image=i)
    huge = (width * height > HUGE_PIXELS) | (facts["state"] == TOO_LARGE)
    for i in np.flatnonzero(huge).tolist():
        found.add("huge image", samples[i].image, text=f"{width[i]} x {height[i]} pixels", image=i)
    for i in seen[facts["orientation"][seen] > 1].tolist():
        found.add("rotated by EXIF", samples[i].image, text=ROTATED[int(facts["orientation"][i])], image=i)
    for i in seen[facts["grey"][seen] & (facts["state"][seen] != UNREADABLE)].tolist():
        found.add("grey image", samples[i].image, image=i)
    for i in np.flatnonzero((facts["bits"] > 0) & (facts["bits"] <= FEW_BITS)).tolist():
        text = f"16 bits a value, of which {facts['bits'][i]} are used: training divides by 257"
        found.add("dark 16-bit image", samples[i].image, text=text, image=i)
    _check_formats(samples, facts, seen, found)
    _check_sizes(samples, facts, seen, found)


def _check_formats(samples: Sequence[Sample], facts: np.ndarray, seen: np.ndarray, found: Findings) -> None:
    for i, form in zip(seen.tolist(), (name.decode() for name in facts["format"][seen].tolist())):
        path = samples[i].image
        if form not in IMG_FORMATS:
            found.add("unsupported image format", path, text=f"a {form.upper()} file", image=i)
        elif path.rpartition(".")[2].lower() not in SUFFIXES.get(form, (form,)):
            found.add("suffix differs from content", path, text=f"a {form.upper()} file", image=i)


def _check_sizes(samples: Sequence[Sample], facts: np.ndarray, seen: np.ndarray, found: Findings) -> None:
    """Sizes that an annotation states against the file's: a scale is harmless, another aspect ratio is not."""
    sizes = loaded_sizes(facts)
    for i in seen.tolist():
        (w, h), real = samples[i].frame, sizes[i].tolist()
        if samples[i].differs_in_aspect(real):
            text = f"the annotation says {w:g} x {h:g}, the file has {real[0]} x {real[1]}"
            found.add("size differs from annotation", samples[i].image, text=text, image=i)


def check_duplicates(
    samples: Sequence[Sample], split: np.ndarray, names: list[str], facts: np.ndarray, found: Findings
):
    """Equal files and near duplicates, across and within splits; split: (n,) number of each image's split name."""
    same = np.zeros((0, 2), np.int64)
    for group in exact_groups(facts["digest"]):
        by_split = defaultdict(list)
        for i in group:
            by_split[split[i]].append(i)
        first = group[0]
        for members in by_split.values():
            for i in members[1:]:
                text = f"same as {samples[members[0]].image}"
                found.add("same image twice", samples[i].image, text=text, image=i, other=members[0])
        for number, members in by_split.items():
            if number != split[first]:
                text = f"in {names[split[first]]} too, as {samples[first].image}"
                i = members[0]
                found.add("image in two splits", samples[i].image, text=text, image=i, other=first)
        same = np.concatenate((same, [(first, i) for i in group[1:]]))
    equal = groups_of(len(samples), same)
    pairs = near_pairs(facts)
    pairs = pairs[equal[pairs[:, 0]] != equal[pairs[:, 1]]]
    for i, j in pairs.tolist():
        if split[i] != split[j]:
            text = f"looks like {samples[i].image} in {names[split[i]]}"
            found.add("near duplicates in two splits", samples[j].image, text=text, image=j, other=i)
        else:
            found.add("near duplicates", samples[j].image, text=f"looks like {samples[i].image}", image=j, other=i)
