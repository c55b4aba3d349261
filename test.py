"""Evaluate a detector on a labelled data set: `python test.py --weights best.pt --data my.yaml`."""

from yolov7fast.core.errors import run_command

if __name__ == "__main__":

    def main() -> int:
        from yolov7fast.cli.commands import test  # imported here, so that a failed import is reported in one line

        return test.main()

    run_command(main)
else:
    from yolov7fast.cli.commands.test import main, test  # scripts call `test.test(...)`

    __all__ = ["main", "test"]
