"""Memory that a process keeps once it has it.

glibc hands freed blocks of some megabytes back to the kernel, and every page of them costs a fault when the next image
needs it: decoding a 640 x 480 JPEG takes 0.9 or 2.3 ms depending on that alone. A process that makes samples frees and
needs the same megabytes over and over, one that trains on a CPU the same gigabytes.
"""

import ctypes
import os

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of glibc's malloc.h
KEPT_BYTES = 512 << 20  # free memory at the end of the heap that is not handed back
LARGEST_IN_HEAP = 32 << 20  # glibc's upper limit; larger blocks are mapped by themselves, and unmapped when freed
CHOSEN_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory(of_any_size: bool = False) -> bool:
    """From now on, keep freed memory for the next use; False where the C library cannot, or the user has chosen.

    At most the largest amount that was ever in use at a time is kept, and no more than KEPT_BYTES.
    of_any_size: blocks beyond LARGEST_IN_HEAP too, and all of it.
    """
    if any(name in os.environ for name in CHOSEN_BY_USER):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - elsewhere mallopt may mean something else
        set_option = library.mallopt
    except (OSError, AttributeError, TypeError):
        return False
    mapped, kept = ((M_MMAP_MAX, 0), -1) if of_any_size else ((M_MMAP_THRESHOLD, LARGEST_IN_HEAP), KEPT_BYTES)
    return bool(set_option(*mapped)) and bool(set_option(M_TRIM_THRESHOLD, kept))  # -1: nothing is handed back
