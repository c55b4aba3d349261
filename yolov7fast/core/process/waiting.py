"""How threads of torch wait for each other on a CPU. It must be chosen before torch is loaded.

OpenMP's threads spin between two parallel parts, by default for milliseconds: on an idle machine that saves waking
them, beside other busy processes they burn the time that the others, and the thread they wait for, would need. A short
spin bridges the gaps of a training step, and a thread that waits longer sleeps. Results do not change: the same threads
do the same sums.
"""

import os
import sys
from collections.abc import MutableMapping

SHORT = {
    # GNU's OpenMP, which torch's packages bring: less than a millisecond. Less is dearer: with 1000 an idle machine's
    # threads fell asleep within a step, which then took 1.1 to 1.4 times as long
    "GOMP_SPINCOUNT": "50000",
    "KMP_BLOCKTIME": "1",  # Intel's and LLVM's: milliseconds, of which it takes whole ones alone
}
CHOSEN_BY = (*SHORT, "OMP_WAIT_POLICY")  # whoever sets one of these has chosen


def wait_briefly(environment: MutableMapping[str, str] = os.environ) -> bool:
    """Let threads spin briefly, in this process and its children, unless the user has chosen or torch is loaded."""
    if "torch" in sys.modules or any(name in environment for name in CHOSEN_BY):
        return False
    environment.update(SHORT)
    return True
