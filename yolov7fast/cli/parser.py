"""The parser of a command, built from rows of the table of flags."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from yolov7fast.cli.flags import Flag, flags_of, removed
from yolov7fast.cli.flags.row import GROUPS
from yolov7fast.cli.run_file import merge, read_run_file
from yolov7fast.core.errors import LONGEST, UserError, one_line
from yolov7fast.core.programs import program_of
from yolov7fast.core.text import nearest, printable


class Parser(argparse.ArgumentParser):
    """argparse with five additions.

    Flags are grouped under the headings of their rows, and `--help` leaves out rare ones, which `--help-all` shows. An
    abbreviation that fits several flags means upstream's one, if there is exactly one: new flags never break an old
    command line. `--config FILE` gives defaults. The result's `given` and `in_file` name the flags of the command line
    and of that file.
    """

    def __init__(self, flags: Iterable[Flag], family: str = "", **kwargs: Any):
        """family: whose run files `--config` takes; empty: any."""
        super().__init__(**{"usage": "%(prog)s [flags]", "formatter_class": Help, **kwargs})
        self.family = family
        self.flags = {flag.dest: flag for flag in flags}
        self._upstream_names = {flag.name for flag in self.flags.values() if flag.upstream}
        order = {group: number for number, group in enumerate(GROUPS)}
        groups = dict.fromkeys(flag.group for flag in self.flags.values())
        for group in sorted(groups, key=lambda group: order.get(group, len(order))):
            place = self.add_argument_group(group) if group else self
            for flag in (flag for flag in self.flags.values() if flag.group == group):
                help = argparse.SUPPRESS if flag.rare else flag.help.replace("%", "%%")
                place.add_argument(flag.name, *flag.aliases, dest=flag.dest, help=help, **flag.arguments())
        if rare := sum(flag.rare for flag in self.flags.values()):
            self._upstream_names.add("--help")  # whose abbreviations it keeps
            self.add_argument("--help-all", action=HelpAll, help=f"show {rare} rarely used flags as well and exit")

    def _get_option_tuples(self, option_string: str):
        matches = super()._get_option_tuples(option_string)
        if len(matches) > 1:
            of_upstream = [match for match in matches if match[1] in self._upstream_names]
            if len(of_upstream) == 1:
                return of_upstream
        return matches

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        opt = super().parse_args(args, namespace)  # first, so that --help shows the defaults
        in_file: dict[str, Any] = {}
        if getattr(opt, "config", ""):
            in_file = self._read_config(opt.config)
            self.set_defaults(**in_file)
            opt = super().parse_args(args, namespace)
            for name, value in in_file.items():  # mappings are merged key by key, as files are over their base
                over = getattr(opt, name)
                if isinstance(value, Mapping) and isinstance(over, Mapping):
                    setattr(opt, name, merge(value, over))
        opt.given, opt.in_file = sorted(self._parse_given(args)), sorted(in_file)
        return opt

    def error(self, message: str):
        """One line; an unknown flag is reported with the nearest known one."""
        prefix, _, unknown = message.partition("unrecognized arguments: ")
        if not prefix and unknown:
            first = unknown.split()[0]
            message = removed(first) or f"unknown flag {unknown}{nearest(first, self._option_string_actions)}"
        self.exit(2, f"error: {printable(message, LONGEST - 100)} (see {self.prog} --help)\n")

    def _parse_given(self, args: Sequence[str] | None) -> dict[str, Any]:
        """The options on the command line, without defaults."""
        kept = [(action, action.default) for action in self._actions]
        kept_defaults = self._defaults
        try:
            self._defaults = {}
            for action in self._actions:
                action.default = argparse.SUPPRESS
            return vars(super().parse_args(args))
        finally:
            self._defaults = kept_defaults
            for action, default in kept:
                action.default = default

    def _read_config(self, path: str) -> dict[str, Any]:
        try:
            return read_run_file(path, self.flags, self.family)
        except UserError as error:
            self.exit(2, f"error: {one_line(error)}\n")


class HelpAll(argparse.Action):
    """Print the help with the rare flags, too, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any):
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        for action in parser._actions:
            if action.help == argparse.SUPPRESS:
                action.help = parser.flags[action.dest].help.replace("%", "%%")
        parser.print_help()
        parser.exit()


class Help(argparse.RawDescriptionHelpFormatter):
    """Help texts followed by the default, if there is a meaningful one."""

    def __init__(self, prog: str, **kwargs: Any):
        super().__init__(prog, **{"max_help_position": 30, **kwargs})

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        if default is None or default is False or default in (argparse.SUPPRESS, "", [], {}):
            return text
        shown = " ".join(map(str, default)) if isinstance(default, list) else str(default)
        return f"{text} (default: {shown.replace('%', '%%')})"


def parser_for(command: str, family: str = "yolo") -> Parser:
    """The parser of `train`, `test` or `detect` for a family of detectors."""
    own = program_of(command, family)
    flags = flags_of(command, family).values()
    return Parser(flags, family, prog=own.invocation, description=own.summary)


# defaults of `test` and `detect` for the checkpoints of DETR trainings; an image size of 0 is the trained one
DETR_DEFAULTS = {"test": {"img_size": 0, "batch_size": 8}, "detect": {"img_size": 0, "conf_thres": 0.5}}


def parse_inference(command: str, args: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags of `test` or `detect`; flags that are not given have DETR's defaults if all weights are .pth files."""
    opt = parser_for(command).parse_args(args)
    weights = [opt.weights] if isinstance(opt.weights, str) else opt.weights
    if all(path.endswith(".pth") for path in weights):
        vars(opt).update({name: v for name, v in DETR_DEFAULTS[command].items() if name not in opt.given})
    return opt
