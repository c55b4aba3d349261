"""Checks of image files, from the facts that reading each file once gives."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from yolov7fast.data.checks.check_findings import Findings
from yolov7fast.data.formats.annotated_set import Sample
from yolov7fast.data.image_facts import MISSING, TOO_LARGE, TRUNCATED, UNREADABLE, loaded_sizes
from yolov7fast.data.image_io import IMG_FORMATS
from yolov7fast.data.labels import MIN_SIDE
from yolov7fast.data.near_duplicates import exact_groups, groups_of, near_pairs

TINY_SIDE = 32  # pixels: the largest stride
HUGE_PIXELS = 25_000_000
SUFFIXES = {"jpeg": ("jpg", "jpeg", "mpo"), "tiff": ("tif", "tiff", "dng"), "mpo": ("jpg", "jpeg", "mpo")}
ROTATED = {2: "mirrored", 3: "turned by 180 degrees", 4: "mirrored upside down", 5: "mirrored and turned"}
ROTATED |= {6: "turned by 90 degrees", 7: "mirrored and turned", 8: "turned by 270 degrees"}
FEW_BITS = 14  # values of a 16-bit image that need no more bits leave the upper quarter of the range unused


def check_images(samples: Sequence[Sample], facts: np.ndarray, found: Findings) -> None:
    """facts: FACTS (n,) of the samples' images, in order."""
    for state, check in ((MISSING, "missing image"), (UNREADABLE, "unreadable image"), (TRUNCATED, "truncated image")):
        for i in np.flatnonzero(facts["state"] == state).tolist():
            found.add(check, samples[i].image, text=facts["error"][i].decode(errors="replace"), image=i)
    sides, sizes = np.stack((facts["width"], facts["height"]), 1).astype(np.int64), loaded_sizes(facts)
    huge = (sides.prod(1) > HUGE_PIXELS) | (facts["state"] == TOO_LARGE)
    for i, (sample, fact) in enumerate(zip(samples, facts)):
        path, (width, height) = sample.image, sides[i].tolist()
        if huge[i]:
            found.add("huge image", path, text=f"{width} x {height} pixels", image=i)
        if fact["bits"] and fact["bits"] <= FEW_BITS:
            text = f"16 bits a value, of which {fact['bits']} are used: training divides by 257"
            found.add("dark 16-bit image", path, text=text, image=i)
        if not width:  # not read
            continue
        if min(width, height) < TINY_SIDE:
            check = "image under 10 pixels" if min(width, height) < MIN_SIDE else "tiny image"
            found.add(check, path, text=f"{width} x {height} pixels", image=i)
        if fact["orientation"] > 1:
            found.add("rotated by EXIF", path, text=ROTATED[int(fact["orientation"])], image=i)
        if fact["grey"] and fact["state"] != UNREADABLE:
            found.add("grey image", path, image=i)
        form = fact["format"].item().decode()
        if form not in IMG_FORMATS:
            found.add("unsupported image format", path, text=f"a {form.upper()} file", image=i)
        elif path.rpartition(".")[2].lower() not in SUFFIXES.get(form, (form,)):
            found.add("suffix differs from content", path, text=f"a {form.upper()} file", image=i)
        if sample.differs_in_aspect(sizes[i]):  # another scale is harmless
            (w, h), real = sample.frame, sizes[i]
            text = f"the annotation says {w:g} x {h:g}, the file has {real[0]} x {real[1]}"
            found.add("size differs from annotation", path, text=text, image=i)


def check_duplicates(
    samples: Sequence[Sample], split: np.ndarray, names: list[str], facts: np.ndarray, found: Findings
):
    """Equal files and near duplicates, in one or two splits; split: (n,) position of each image's split in `names`."""
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
