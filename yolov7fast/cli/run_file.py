"""Run files (yaml of flags, with inheritance) and the checks that flags must pass before anything is built."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from yolov7fast.cli.flags import Flag, nearest
from yolov7fast.core.errors import UserError
from yolov7fast.core.yaml_file import read_yaml

SECTIONS = ("training", "data", "model", "run", "optimizer", "augment")  # headings a run file may group flags under


def read_yaml_chain(path: str | Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML mapping, merged over the file that its key `base` names (relative to itself), key by key."""
    path = Path(path)
    if not path.is_file():
        raise UserError(f"run file {path} does not exist; see configs/ for examples")
    if path.resolve() in seen:
        raise UserError(f"run file {path}: `base` leads back to itself")
    values = read_yaml(path, "run file") or {}
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        raise UserError(f"run file {path} must hold a mapping of flags, such as 'epochs: 2'")
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"run file {path}: base must name another run file, not {base!r}")
    inherited = read_yaml_chain(path.parent / base, (*seen, path.resolve()))
    return merge(inherited, values)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; nested mappings are merged."""
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = merge(result[key], value)
        result[key] = value
    return result


def read_run_file(path: str | Path, flags: Mapping[str, Flag]) -> dict[str, Any]:
    """A run file as flag values: section headings are dropped, every key is checked against the table of flags."""
    values = without_sections(read_yaml_chain(path), path)
    return {check_flag_name(key, flags, path): value for key, value in _checked_types(values, flags, path)}


def without_sections(values: Mapping[str, Any], where) -> dict[str, Any]:
    """The flags under all headings, at one level."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{where}: {key!r} is no name of a flag; flags are written as 'epochs: 2'")
        if key in SECTIONS and isinstance(value, Mapping | None):  # None: all keys below it are left out
            flat |= without_sections(value or {}, where)
        elif key not in SECTIONS or key == "data":  # which names a file, too
            flat[key] = value
        else:
            raise UserError(f"{where}: {key} is a heading with flags below it, as in '{key}: {{...}}', not {value!r}")
    return flat


def check_flag_name(key: str, flags: Mapping[str, Flag], where) -> str:
    dest = key.lstrip("-").replace("-", "_")
    other = {alias.lstrip("-").replace("-", "_"): flag.dest for flag in flags.values() for alias in flag.aliases}
    dest = other.get(dest, dest)
    if dest not in flags or dest == "config":
        raise UserError(f"{where}: unknown flag '{key}'{nearest(dest, [*flags, *SECTIONS])}")
    return dest


def _checked_types(values: Mapping[str, Any], flags: Mapping[str, Flag], where):
    for key, value in values.items():
        yield key, check_flag_value(flags[check_flag_name(key, flags, where)], value, where)


def check_flag_value(flag: Flag, value: Any, where) -> Any:
    """The value as argparse would have made it, or a UserError naming flag and place."""
    options = flag.options
    if flag.dest == "resize_schedule" and isinstance(value, list):
        if not all(isinstance(step, list) for step in value):
            raise UserError(f"{where}: resize_schedule must be a list of [epoch, size] or [epoch, size, batch]")
        return ",".join(":".join(str(part) for part in step) for step in value)
    if flag.dest == "hyp" and isinstance(value, Mapping):
        return dict(value)
    if options.get("action") == "store_true":
        if not isinstance(value, bool):
            raise UserError(f"{where}: {flag.dest} is a switch: true or false, not {value!r}")
        return value
    if value is False and "off" in options.get("choices", ()):
        return "off"  # YAML reads a bare `off` as false
    if "choices" in options and value not in (*options["choices"], options.get("default")):
        if not (value is True and options.get("const")):
            raise UserError(f"{where}: {flag.dest} must be one of {options['choices']}, not {value!r}")
        return options["const"]
    if options.get("nargs") == "+":
        value = value if isinstance(value, list) else [value]
        return [_convert(flag, item, where) for item in value]
    if value is None and options.get("default") is not None:
        raise UserError(f"{where}: {flag.dest} has no value; leave the key out for the default")
    if value == options.get("default") or (value is True and "const" in options):
        return options["const"] if value is True and "const" in options else value
    return _convert(flag, value, where)


def _convert(flag: Flag, value: Any, where) -> Any:
    type_ = flag.options.get("type", str)
    cut = type_ is int and isinstance(value, float) and not value.is_integer()
    if isinstance(value, bool) or cut or (type_ is str and isinstance(value, list | Mapping)):
        raise UserError(f"{where}: {flag.dest} must be {type_.__name__}, not {value!r}")
    try:
        return type_(value)
    except (TypeError, ValueError):
        raise UserError(f"{where}: {flag.dest} must be {type_.__name__}, not {value!r}") from None


# --- checks of the flags themselves -----------------------------------------------------------------------------------


class ResizeStage(NamedTuple):
    """From `epoch` (counted from 0) on, train at `size` with `batch` images in all (None: as before)."""

    epoch: int
    size: int
    batch: int | None = None


def parse_resize_schedule(text: str) -> list[ResizeStage]:
    """'1:320,20:480' or '1:320:64,20:480:32' -> stages; epochs are counted from 1 in the text."""
    stages = []
    for step in filter(None, (part.strip() for part in text.split(","))):
        try:
            numbers = [int(number) for number in step.split(":")]
        except ValueError:
            numbers = []
        if len(numbers) not in (2, 3) or min(numbers) < 1:
            raise UserError(f"--resize-schedule: '{step}' is not EPOCH:SIZE or EPOCH:SIZE:BATCH, such as 20:480")
        stages.append(ResizeStage(numbers[0] - 1, *numbers[1:]))
    epochs = [stage.epoch for stage in stages]
    if stages and (epochs[0] != 0 or sorted(set(epochs)) != epochs):
        raise UserError(f"--resize-schedule '{text}' must begin with epoch 1 and rise, such as 1:320,20:480")
    return stages


MAX_SEED = 2**31 - 1  # NumPy's generator takes 32 bits, and every process adds its rank
LOWER_LIMITS = {
    "epochs": 1,
    "batch_size": 1,
    "workers": 0,
    "micro_batch": 0,
    "patience": 0,
    "test_batch_size": 1,
    "eval_interval": 1,
    "max_iter": 0,
    "subset_size": 0,
    "overfit": 0,
    "save_every": 0,
    "skip_nonfinite": 0,
    "heads": 0,
}


def check_limits(opt, limits: Mapping[str, float] = LOWER_LIMITS) -> None:
    """Refuse numbers that are too small, each by its flag; a flag that this command does not have is passed over."""
    for name, low in limits.items():
        value = getattr(opt, name, None)
        if value is not None and value < low:
            raise UserError(f"--{name.replace('_', '-')} is {value}; it must be at least {low}")


def check_seed(seed: int | None) -> None:
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise UserError(f"--seed is {seed}; it must be in 0..{MAX_SEED}")


def check_patience(opt) -> None:
    if opt.patience and opt.notest:
        raise UserError("--patience judges epochs by their validation, which --notest leaves out: drop one of the two")


def check_options(opt) -> None:
    """Refuse impossible or contradicting flags, each by name."""
    check_limits(opt)
    if any(size < 32 for size in opt.img_size) or len(opt.img_size) > 2:
        raise UserError(f"--img-size {' '.join(map(str, opt.img_size))}: one or two sizes of at least 32 pixels")
    if not 0 <= opt.label_smoothing < 1:
        raise UserError(f"--label-smoothing is {opt.label_smoothing}; it must be in 0..1")
    if opt.shuffle and opt.seed is None:
        raise UserError("--shuffle needs --seed N, which the order of the images is drawn from")
    check_seed(opt.seed)
    if opt.micro_batch and not (opt.worker_tensor or opt.fast_dataloader):
        raise UserError("--micro-batch is a matter of --worker-tensor (or --fast-dataloader): add it, or leave it out")
    if opt.resize_schedule and (opt.multi_scale or opt.evolve):
        raise UserError("--resize-schedule cannot be combined with --multi-scale or --evolve")
    if not opt.evolve:
        check_patience(opt)
    if opt.transfer_weights and not opt.weights:
        raise UserError("--transfer-weights needs --weights FILE to take from")
    if opt.overfit and (opt.subset_size or opt.evolve or opt.image_weights):
        raise UserError("--overfit N already says which images; leave out --subset-size, --image-weights, --evolve")
    parse_resize_schedule(opt.resize_schedule)
