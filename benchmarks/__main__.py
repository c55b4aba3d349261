"""`make bench`: every benchmark at a size of minutes, then one table of ratios; `make bench-full`: the large sizes."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("loss", "data", "eval", "train")


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the large sizes")
    opt = parser.parse_args()
    rows, failed, machine = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS:
            print(f"\n--- {part} " + "-" * 100, flush=True)
            path = Path(folder) / f"{part}.json"
            size = [] if opt.full else ["--quick"]
            done = subprocess.run([sys.executable, "-m", f"benchmarks.{part}", *size, "--json", str(path)], cwd=ROOT)
            if done.returncode or not path.is_file():
                failed.append(part)
                continue
            results = json.loads(path.read_text())
            machine = results["machine"]
            rows += [(part, row) for row in results["ratios"]]
    print("\n" + " ".join(f"{key} {value}" for key, value in machine.items()))
    print(f"{'':<8}{'what':<82}{'ratio':>9}  {'must':<12}{'runs':>5}")
    for part, row in rows:
        print(f"{part:<8}{row['what']:<82}{row['value']:9.3f}  {row['must']:<12}{row['runs']:>5}")
    for part in failed:
        print(f"benchmarks.{part} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
