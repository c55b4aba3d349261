"""Duplicate images: equal files, and files that differ in encoding, size or slightly in brightness.

Near duplicates have perceptual hashes that differ in few of their 64 bits, and similar thumbnails. All pairs are
compared; 100,000 images take seconds.
"""

import numpy as np
from tqdm import tqdm

MOST_BITS = 12  # of 64 that may differ: resized and re-encoded images differ in up to 10
MOST_DIFFERENCE = 6.0  # grey levels, mean over the thumbnail
BLOCK = 1 << 17  # pairs whose hashes are compared at once: one megabyte
THUMBS = 1 << 14  # pairs whose thumbnails are compared at once
MANY = 50_000  # images from which on progress is shown


def exact_groups(digests: np.ndarray) -> list[list[int]]:
    """Return groups of images whose files are equal; digests: (n, 2) uint64, (0, 0) = not read."""
    read = np.flatnonzero(digests.any(1))
    order = read[np.lexsort((digests[read, 1], digests[read, 0]))]  # stable: positions of equal files ascend
    changes = 1 + np.flatnonzero((digests[order[1:]] != digests[order[:-1]]).any(1))
    return [group.tolist() for group in np.split(order, changes) if len(group) > 1]


def near_pairs(facts: np.ndarray) -> np.ndarray:
    """Return positions i < j, (p, 2), of images in FACTS (n,) that look the same; equal files are included."""
    usable = np.flatnonzero((facts["phash"] != 0) & ~facts["flat"])
    hashes = facts["phash"][usable]
    thumbs = facts["thumb"][usable].reshape(len(usable), facts.dtype["thumb"].itemsize)
    found = [np.zeros((0, 2), np.int64)]
    step = max(BLOCK // max(len(usable), 1), 1)
    bar = tqdm(range(0, len(usable), step), "comparing images", leave=False, disable=len(usable) < MANY)
    for start in bar:
        rows, columns = hashes[start : start + step, None], hashes[None, start:]
        close = np.flatnonzero(np.bitwise_count(rows ^ columns) <= MOST_BITS)
        i, j = start + close // columns.shape[1], start + close % columns.shape[1]
        i, j = i[i < j], j[i < j]
        for part in range(0, len(i), THUMBS):
            a, b = i[part : part + THUMBS], j[part : part + THUMBS]
            alike = np.abs(thumbs[a].astype(np.int16) - thumbs[b]).mean(1) <= MOST_DIFFERENCE
            found.append(np.stack((a[alike], b[alike]), 1))
    return usable[np.concatenate(found)]


def groups_of(n: int, pairs: np.ndarray) -> np.ndarray:
    """Return for each of n images the smallest position that it is connected with by pairs (p, 2): (n,)."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(n, n))
    _, group = connected_components(links, directed=False)
    _, first = np.unique(group, return_index=True)
    return first[group]
