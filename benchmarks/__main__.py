"""`make bench`: every benchmark at a size of minutes, then one table of ratios; `make bench-full`: the large sizes."""

import argparse
import json
import operator
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = {  # module of each
    "loss": "benchmarks.losses.loss",
    "data": "benchmarks.data",
    "eval": "benchmarks.inference.eval",
    "train": "benchmarks.training.train",
}
COMPARE = {"<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt, "==": operator.eq}


def verdict(value: float, must: str) -> str:
    """Whether a ratio meets its bound, such as `<= 1.25` or `>= 2x`; `-` if it has none."""
    sign, _, bound = must.partition(" ")
    if sign not in COMPARE:
        return "-"
    return "ok" if COMPARE[sign](value, float(bound.removesuffix("x"))) else "MISSED"


def run_part(part: str, full: bool, folder: Path) -> dict | None:
    """The results of one benchmark, run in a separate process; None if it failed."""
    print(f"\n--- {part} " + "-" * 100, flush=True)
    path = folder / f"{part}.json"
    size = [] if full else ["--quick"]
    done = subprocess.run([sys.executable, "-m", PARTS[part], *size, "--json", str(path)], cwd=ROOT)
    return json.loads(path.read_text()) if done.returncode == 0 and path.is_file() else None


def table(results: dict[str, dict | None]) -> str:
    """One line for each ratio of every part, with the machine above and failed parts below."""
    machine = next((found["machine"] for found in results.values() if found), {})
    lines = [" ".join(f"{key} {value}" for key, value in machine.items())]
    lines.append(f"{'':<8}{'what':<82}{'ratio':>9}  {'must':<18}{'verdict':<8}{'runs':>5}")
    for part, found in results.items():
        for row in found["ratios"] if found else ():
            kept = verdict(row["value"], row["must"])
            figures = f"{row['value']:9.3f}  {row['must']:<18}{kept:<8}{row['runs']:>5}"
            lines.append(f"{part:<8}{row['what']:<82}{figures}")
    return "\n".join([*lines, *(f"{PARTS[part]} failed" for part, found in results.items() if not found)])


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 only if a benchmark could not be run: a ratio beyond its bound is also a result."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the large sizes")
    opt = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        results = {part: run_part(part, opt.full, Path(folder)) for part in PARTS}
    print("\n" + table(results))
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
