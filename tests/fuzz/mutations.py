"""What can be wrong with a file: bytes, words, lines, values in a structure, members of an archive."""

import copy
import io
import json
import pickle
import random
import re
import zipfile
from collections.abc import Callable, Iterable
from typing import Any

import torch
import yaml

Mutation = Callable[[bytes, random.Random], bytes]

BOMB = "[" + ", ".join(f"&a{i} [{', '.join([f'*a{i - 1}' if i else 'x'] * 9)}]" for i in range(12)) + "]"
NUMBERS = "nan .nan inf -.inf -1 0 -0.0 1e400 1e-320"
SIGNS = "0x7fffffffffffffff 1_0 true null ~ [] {} [[]] ' \""
OTHERS = "1e9 100000000 -5 0.5 65536 3.7 2020-01-01 1:30 %s%n {{x}} <b> &amp; \ufeff \u202e"
WORDS = (
    *("", *NUMBERS.split(), "9" * 400, "1" * 5000, str(2**63), *SIGNS.split(), "- - -", "!!int ''", "!!bool foo"),
    *("!!float x", "!!timestamp 1", "!!python/object:os.system x", "!!binary x", "&a [*a]", "*a", "<<: *a", BOMB),
    *("x" * 100_000, "a/" * 3000, "\x1b[31mred", "$\\frac{$", "line\nbreak", "\0", "../../../../etc/passwd", "/"),
    *("é漢字", *OTHERS.split()),
)
NAN, INFINITE = float("nan"), float("inf")
VALUES = (
    *(None, True, False, 0, -1, 1, 7, 10**7, 10**12, 2**63, -(2**70), 10**400, 0.0, -0.5, 1e308, NAN, INFINITE),
    *("", "x", "nan", "1e3", "x" * 50_000, "\x1b[31m", "$\\frac{$", "a\nb", "../..", "/", "\0", [], {}, [[]], [None]),
    *({"": 0}, [1, 2, 3], ["a"] * 2000, {"a": {"b": {"c": {}}}}, {1: 2}, list(range(-3, 3))),
)


def chosen(rng: random.Random, items: Iterable[Any]) -> Any:
    return copy.deepcopy(rng.choice(list(items)))


# --- bytes ------------------------------------------------------------------------------------------------------------


def flip(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(min(rng.choice((1, 1, 2, 8, 64)), len(changed))):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.choice((0, 1, len(content) // 2, max(len(content) - 1, 0), rng.randrange(len(content) + 1)))]


def cut_out(content: bytes, rng: random.Random) -> bytes:
    start, end = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    return content[:start] + content[end:]


def insert(content: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(content) + 1), rng.choice((1, 4, 100))
    block = rng.choice((bytes(size), b"\xff" * size, rng.randbytes(size), content[:size]))
    return content[:at] + block + content[at:]


BYTES: tuple[Mutation, ...] = (flip, flip, truncate, cut_out, insert)


# --- words and lines --------------------------------------------------------------------------------------------------


def replace_word(content: bytes, rng: random.Random) -> bytes:
    text = content.decode("utf-8", "surrogateescape")
    words = list(re.finditer(r"[\w.+-]+", text))
    if not words:
        return chosen(rng, WORDS).encode("utf-8", "surrogateescape")
    word = rng.choice(words)
    return (text[: word.start()] + rng.choice(WORDS) + text[word.end() :]).encode("utf-8", "surrogateescape")


def shuffle_lines(content: bytes, rng: random.Random) -> bytes:
    lines = content.split(b"\n")
    at = rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, rng.choice(lines))
    elif kind == 2:
        lines[at] = b" " * rng.randrange(1, 9) + lines[at]
    else:
        lines[at : at + 1] = [lines[at]] * rng.choice((2, 50))
    return b"\n".join(lines)


TEXT: tuple[Mutation, ...] = (*BYTES, replace_word, replace_word, replace_word, shuffle_lines)


# --- structures -------------------------------------------------------------------------------------------------------


def places(value: Any, limit: int = 20_000) -> list[tuple[Any, Any]]:
    """(container, key) of every value in nested dictionaries and lists."""
    found, stack = [], [value]
    while stack and len(found) < limit:
        container = stack.pop()
        keys = container.keys() if isinstance(container, dict) else range(len(container))
        for key in keys:
            found.append((container, key))
            if isinstance(container[key], dict | list) and container[key]:
                stack.append(container[key])
    return found


def change_value(root: Any, rng: random.Random, values: Iterable[Any] = VALUES) -> Any:
    """The structure with one of its values replaced, removed, wrapped or doubled."""
    found = places(root) if isinstance(root, dict | list) else []
    if not found or rng.random() < 0.03:
        return chosen(rng, values)
    container, key = rng.choice(found)
    kind = rng.random()
    if kind < 0.6:
        container[key] = chosen(rng, values)
    elif kind < 0.75:
        del container[key]
    elif kind < 0.85:
        container[key] = [container[key]]
    elif isinstance(container, dict):
        container[rng.choice(("", "x", "extra\n", 0))] = container[key]
    else:
        container.extend([container[key]] * rng.choice((1, 100)))
    return root


def yaml_value(content: bytes, rng: random.Random) -> bytes:
    return yaml.safe_dump(change_value(yaml.safe_load(content), rng), sort_keys=False).encode(
        "utf-8", "surrogateescape"
    )


def json_value(content: bytes, rng: random.Random) -> bytes:
    changed = change_value(json.loads(content), rng)
    return re.sub(r"\bNaN\b", rng.choice(("NaN", "null")), dumps(changed)).encode("utf-8", "surrogateescape")


def dumps(value: Any) -> str:
    try:
        return json.dumps(value)
    except (TypeError, ValueError):  # keys that JSON has not, integers that Python does not print
        return "[" * 5000


YAML: tuple[Mutation, ...] = (*TEXT, yaml_value, yaml_value, yaml_value)
JSON: tuple[Mutation, ...] = (*TEXT, json_value, json_value, json_value, json_value)


# --- archives and checkpoints -----------------------------------------------------------------------------------------


def change_member(content: bytes, rng: random.Random, endings: tuple[str, ...] = ("",)) -> bytes:
    """A zip archive with sound checksums in which the bytes of one member are others."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(out, "w") as new:
        entries = old.infolist()
        picked = rng.choice([e.filename for e in entries if e.filename.endswith(endings)])
        compression = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
        for entry in entries:
            data = old.read(entry)
            if entry.filename == picked:
                data = rng.choice(BYTES)(data, rng) if rng.random() < 0.9 else bytes(1 << 24)
                new.writestr(entry.filename, data, compression)
            else:
                new.writestr(entry.filename, data, entry.compress_type)
    return out.getvalue()


def change_pickle(content: bytes, rng: random.Random) -> bytes:
    return change_member(content, rng, ("data.pkl",))


TENSORS = (
    torch.zeros(0),
    torch.zeros(3),
    torch.full((2, 2), float("nan")),
    torch.zeros(1, dtype=torch.int64),
    torch.eye(4),
)


def checkpoint_mutation(load: Callable[[bytes], Any], save: Callable[[Any], bytes]) -> tuple[Mutation, ...]:
    """Mutations of checkpoints, most of them of one value; load and save: by the project's own means."""

    def change(content: bytes, rng: random.Random) -> bytes:
        plain = [value for value in VALUES if not isinstance(value, int) or abs(value) < 10**300]
        try:
            return save(change_value(load(content), rng, (*plain, *TENSORS)))
        except (TypeError, ValueError, OverflowError, pickle.PicklingError):
            return flip(content, rng)

    return (*BYTES, change_member, change_pickle, change, change, change, change)
