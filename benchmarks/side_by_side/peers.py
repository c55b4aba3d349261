"""Compares epoch times, and accuracy after equal time, with other trainers: in turn, from scratch, on one data set.

    python -m benchmarks.side_by_side.peers [--reference DIR] [--ultralytics PYTHON] [--libreyolo PYTHON]
        [--minutes 5] [--json FILE]

PYTHON is the interpreter of an environment that has the package; DIR a checkout of upstream. An epoch, with the
validation after it, lasts from one line of the trainer's table of results to the next: the median over all of a
trainer's runs, without its first epoch. In the race each trains for as many epochs as its own speed fits into
`--minutes`, so that its schedule ends there; mAP@.5 is what it writes of its last validation, by its own evaluation.
"""

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from benchmarks.measure import machine, write_json
from benchmarks.photographs import image_folder, photographs
from benchmarks.side_by_side.parts import own_data
from benchmarks.side_by_side.trainers import Race, Trainer, entered
from yolov7fast.core.errors import UserError, run_command


def measure(trainers: dict[Trainer, Race], opt: argparse.Namespace) -> list[dict]:
    """A row for each trainer; one that fails is reported in its row, and the others are still measured."""
    entrants = [Entrant(t, race, {"trainer": t.name, "network": t.network}) for t, race in trainers.items()]
    turns = [str(turn) for turn in range(opt.rounds)] + ["race"] * bool(opt.minutes)
    with tqdm(total=len(turns) * len(entrants), desc="trainings", leave=False) as bar:
        for turn in turns:
            for number, entrant in enumerate(entrants):
                if "error" not in entrant.row:
                    entrant.take_turn(opt, f"{number}_{turn}", is_race=turn == "race")
                bar.update()
                write_json(opt.json, {"machine": machine(), "settings": vars(opt), "rows": [e.row for e in entrants]})
    return [entrant.row for entrant in entrants]


@dataclass
class Entrant:
    trainer: Trainer
    race: Race
    row: dict
    epochs: list[float] = field(default_factory=list)  # seconds of each so far
    starts: list[float] = field(default_factory=list)

    def take_turn(self, opt: argparse.Namespace, name: str, is_race: bool) -> None:
        """Train once, and add the results to the row."""
        race, row, epochs = self.race, self.row, opt.epochs
        if is_race:
            epochs = max(2, int((opt.minutes * 60 - row["start"]) / row["epoch"]))
        try:
            done = self.trainer.run(race, epochs, name)
            self.epochs += done.epochs
            row["epoch"] = statistics.median(self.epochs)
            self.starts.append(max(0.0, done.first - row["epoch"]))
            row |= {"start": statistics.median(self.starts), "images_per_second": opt.images / row["epoch"]}
            row["epochs_measured"] = len(self.epochs)
            row |= self.trainer.size(race, done.folder)
            if is_race:
                row |= {"epochs": epochs, "minutes": done.seconds / 60, "map50": self.trainer.map50(done.folder)}
        except UserError as error:
            row["error"] = str(error)


def table(rows: list[dict], minutes: float) -> str:
    head = f"{'trainer':<24}{'network':<14}{'M param':>8}{'GFLOPs':>8}{'s/epoch':>9}{'images/s':>10}"
    lines = [head + (f"{'epochs':>8}{'minutes':>9}{'mAP@.5':>8}" if minutes else "")]
    for row in rows:
        line = f"{row['trainer']:<24}{row['network']:<14}"
        if "error" in row:
            lines.append(line + row["error"])
            continue
        line += f"{row['parameters']:8.2f}{row['gflops']:8.2f}{row['epoch']:9.1f}{row['images_per_second']:10.1f}"
        raced = f"{row['epochs']:8d}{row['minutes']:9.1f}{row['map50']:8.3f}" if minutes else ""
        lines.append(line + raced)
    return "\n".join(lines)


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", metavar="DIR", help="a checkout of upstream")
    parser.add_argument("--ultralytics", metavar="PYTHON", help="interpreter that has ultralytics")
    parser.add_argument("--ultralytics-network", default="yolo11n", help="(default: %(default)s)")
    parser.add_argument("--libreyolo", metavar="PYTHON", help="interpreter that has libreyolo")
    parser.add_argument("--libreyolo-networks", nargs="+", default=["yolo9-t"], help="(default: yolo9-t)")
    parser.add_argument(
        "--minutes", type=float, default=5, help="of the race; 0 to leave it out (default: %(default)s)"
    )
    parser.add_argument("--epochs", type=int, default=3, help="of the runs before the race (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=1, help="of these runs, in turn (default: %(default)s)")
    parser.add_argument("--img-size", type=int, default=320, help="(default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="loader processes (default: %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the results to this file after each trainer")
    opt = parser.parse_args(argv)
    for flag, value, least in (("--epochs", opt.epochs, 2), ("--rounds", opt.rounds, 1), ("--minutes", opt.minutes, 0)):
        if value < least:
            raise UserError(f"{flag} is {value}; it must be at least {least}")
    return opt


def main(argv: list[str] | None = None) -> int:
    opt = parse(argv)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = folder / "runs"
        runs.mkdir()
        trainers = {}
        for number, trainer in enumerate(entered(opt)):
            data = writable_copy(folder / str(number))
            trainers[trainer] = Race(data, opt.img_size, opt.batch_size, opt.workers, runs)
        opt.images = len(list((folder / "0" / "train").rglob("*.jpg")))
        rows = measure(trainers, opt)
    print(table(rows, opt.minutes))
    return 1 if any("error" in row for row in rows) else 0


def writable_copy(folder: Path) -> Path:
    """The data set with links to its images, for one trainer: all write label caches of one name, not of one kind."""
    folder.mkdir()
    source = image_folder(folder)
    text = photographs(folder).read_text()
    for split in ("train", "val"):
        text = text.replace(str(source / "images" / split), str(own_data(source / "images" / split, folder / split)))
    data = folder / "data.yaml"
    data.write_text(text)
    return data


if __name__ == "__main__":
    run_command(main)
