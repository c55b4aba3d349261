"""Run files: yaml of flags, with inheritance, checked against the table of flags."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from yolov7fast.checkpoint.families import FAMILIES, FAMILY_KEY, entry_of
from yolov7fast.cli.flags import Flag, flags_of, removed
from yolov7fast.core.errors import UserError, shown
from yolov7fast.core.files.paths import check_path, nearest_shipped, shipped_file
from yolov7fast.core.files.settings_files import read_yaml
from yolov7fast.core.programs import program_of
from yolov7fast.core.text import nearest, printable

SECTIONS = ("training", "data", "model", "run", "optimizer", "augment")  # headings a run file may group flags under


def read_yaml_chain(path: str | Path) -> dict[str, Any]:
    """A YAML mapping, merged over the file that its key `base` names (relative to itself), key by key."""
    values: dict[str, Any] = {}
    for _, below in yaml_chain(path):
        values = merge(below, values)
    return values


def yaml_chain(path: str | Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A run file and its content without `base`, then the file that `base` names, and so on."""
    file, seen = find_run_file(path), []
    while True:
        if not file.is_file():
            raise UserError(f"run file {file} does not exist; it is the `base` of {seen[-1]}")
        if file.resolve() in seen:
            raise UserError(f"run file {file}: `base` leads back to itself")
        values = read_yaml(file, "run file") or {}
        if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
            raise UserError(f"run file {file} must hold a mapping of flags, such as 'epochs: 2'")
        base = values.pop("base", None)
        yield file, values
        if base is None:
            return
        if not isinstance(base, str):
            raise UserError(f"run file {file}: base must name another run file, not {shown(base)}")
        check_path(base)
        seen.append(file.resolve())
        file = file.parent / base


def find_run_file(path: str | Path) -> Path:
    """A run file as given, or a shipped one by its path or short name (`tiny_smoke`)."""
    check_path(path)
    found = path if Path(path).is_file() else shipped_file(str(path), "run file")
    if found is None:
        raise UserError(f"run file {path} does not exist{nearest_shipped(str(path), 'run file')}")
    return Path(found)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins; nested mappings are merged."""
    result = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            value = merge(result[key], value)
        result[key] = value
    return result


def read_run_file(path: str | Path, flags: Mapping[str, Flag], family: str = "") -> dict[str, Any]:
    """A run file as flag values: section headings are dropped, every key is checked against the table of flags.

    family: whose flags these are; a file that names another one is refused.
    """
    values = without_sections(read_yaml_chain(path), path)
    other = values.pop(FAMILY_KEY, family)
    if family and other != family:
        entry_of(str(other), str(path))
        start = program_of("train", other).invocation
        raise UserError(
            f"{path} is a run file of the {other} family; start it with: {start} --config {quote(str(path))}"
        )
    named = {check_flag_name(key, flags, path): value for key, value in values.items()}
    for name in named:
        if flags[name].typed:
            raise UserError(f"{path}: {flags[name].name} runs commands: give it on the command line")
    return {name: flags[name].value_of(value, path) for name, value in named.items()}


def flags_set_with(name: str, path: str | Path, flags: Mapping[str, Flag]) -> set[str]:
    """The flags in the run file that switches `name` on, and in those built on it; none if no file does."""
    found: set[str] = set()
    for file, values in yaml_chain(path):
        flat = without_sections(values, file)
        own = {check_flag_name(key, flags, file): value for key, value in flat.items() if key != FAMILY_KEY}
        found |= own.keys()
        if name in own:
            return found if own[name] else set()
    return set()


def family_of_run_file(path: str | Path) -> str:
    """The family of detectors that a run file is for, by its key `family`.

    Older files do not have the key: they are of the family that has most of their flags, YOLO in a tie.
    """
    values = without_sections(read_yaml_chain(path), path)
    if FAMILY_KEY in values:
        entry_of(str(values[FAMILY_KEY]), str(path))
        return str(values[FAMILY_KEY])
    unknown = {name: sum(find_flag(key, flags_of("train", name)) is None for key in values) for name in FAMILIES}
    return min(unknown, key=lambda name: unknown[name])


def without_sections(values: Mapping[str, Any], where) -> dict[str, Any]:
    """The flags under all headings, at one level."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise UserError(f"{where}: {shown(key)} is not the name of a flag; flags are written as 'epochs: 2'")
        if key in SECTIONS and isinstance(value, Mapping | None):  # None: all keys below it are left out
            flat |= without_sections(value or {}, where)
        elif key not in SECTIONS or key == "data":  # which names a file, too
            flat[key] = value
        else:
            raise UserError(
                f"{where}: {key} is a heading with flags below it, as in '{key}: {{...}}', not {shown(value)}"
            )
    return flat


def find_flag(key: str, flags: Mapping[str, Flag]) -> str | None:
    """The flag that a key of a run file names, by its name or an alias; None: it is none that files may have."""
    dest = key.lstrip("-").replace("-", "_")
    other = {alias.lstrip("-").replace("-", "_"): flag.dest for flag in flags.values() for alias in flag.aliases}
    dest = other.get(dest, dest)
    return dest if dest in flags and dest != "config" else None


def check_flag_name(key: str, flags: Mapping[str, Flag], where) -> str:
    dest = find_flag(key, flags)
    if dest is None:
        if why := removed(key):
            raise UserError(f"{where}: {why}")
        near = nearest(key.lstrip("-").replace("-", "_"), [*flags, *SECTIONS])
        raise UserError(f"{where}: unknown flag '{printable(key, 60)}'{near}")
    return dest
