"""A flag for every setting: ``--store.segment-bytes 64MiB``."""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from headrace.settings import LoadedSettings, load_settings
from headrace.settings.tree import SettingField, sections, setting_fields

CONFIG_VARIABLE: Final = "HEADRACE_CONFIG"
COLLECTED: Final = "headrace.flags"
SHORT_FORMS: Final = {"store.data_dir": "--data-dir"}

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class FolderPath(click.Path):
    """A path that is not empty: it would be the working directory, and comes of ``"$UNSET"``."""

    needed = 'a path is needed, "." for the working directory'

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if not value:
            self.fail(self.needed, param, ctx)
        return super().convert(value, param, ctx)


class FilePath(FolderPath):
    """The path of a file."""

    needed = "the name of a file is needed"


class SettingOption(click.Option):
    """The flag of one setting; its help is the text under the field in the settings tree."""

    def __init__(self, setting: SettingField) -> None:
        self.setting = setting
        names = [name for name in (SHORT_FORMS.get(setting.path), setting.flag) if name]
        super().__init__(
            [*names, setting.path.replace(".", "__")], expose_value=False, callback=collect, metavar="VALUE"
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flag and the first sentence about the setting, read only when help is asked for."""
        from headrace.settings.reference import doc_of, show_value  # noqa: PLC0415  # parses the source of the tree

        sentence = doc_of(self.setting).split(". ")[0].rstrip(".").replace("``", "")
        if self.setting.choices:
            sentence += f": {', '.join(self.setting.choices)}"
        return ", ".join(self.opts), f"{sentence}. [{show_value(self.setting, self.setting.default)}]"


class SettingsCommand(click.Command):
    """A command that takes every setting as a flag, in its own block of the help.

    Args:
        uses: Sections, and paths of single settings, that the help lists. Flags of others are taken all the same, as
            others are in a file that several commands share.
    """

    def __init__(self, *args: Any, uses: Collection[str] = tuple(sections()), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.uses = uses
        # Underscores and dashes are the same in flags.
        self.context_settings = {**self.context_settings, "token_normalize_func": normalize}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, but refuse a flag where the value of the one before it should be.

        Click takes it for the value, and complains about what follows, or about nothing.

        Raises:
            click.BadOptionUsage: a flag has no value.
        """
        options = {normalize(name): param for param in self.get_params(ctx) for name in param.opts}
        own = args[: args.index("--")] if "--" in args else args
        for name, following in pairwise(own):
            option = options.get(normalize(name))
            takes_value = isinstance(option, click.Option) and not option.is_flag
            if takes_value and normalize(following.partition("=")[0]) in options:
                raise click.BadOptionUsage(name, f"Option {name!r} requires an argument.", ctx)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the settings."""
        for title, is_setting in (("Options", False), ("Settings", True)):
            rows = [
                record
                for param in self.get_params(ctx)
                if isinstance(param, click.Option)  # arguments stand in the line of usage
                and isinstance(param, SettingOption) is is_setting
                and (not isinstance(param, SettingOption) or {param.setting.section, param.setting.path} & {*self.uses})
                and (record := param.get_help_record(ctx))
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


def normalize(name: str) -> str:
    """Return the name of a flag with dashes only."""
    return name.replace("_", "-")


def collect(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    """Keep the text of a flag for ``read_settings``."""
    if value is not None and isinstance(param, SettingOption):
        ctx.meta.setdefault(COLLECTED, []).append((param.setting.flag, value))


def settings_flags(function: Decorated) -> Decorated:
    """Give a command ``--config`` and a flag for every setting; it calls ``read_settings`` with its context."""
    options = [
        click.Option(
            ["--config"],
            type=FilePath(),
            envvar=CONFIG_VARIABLE,
            metavar="FILE",
            help=f"Settings file (TOML). [variable {CONFIG_VARIABLE}]",
        ),
        *(SettingOption(setting) for setting in setting_fields()),
    ]
    attached: list[click.Parameter] = function.__dict__.setdefault("__click_params__", [])
    attached.extend(reversed(options))
    return function


def read_settings(ctx: click.Context, config: Path | None) -> LoadedSettings:
    """Load the settings of this invocation: flags, environment, file, defaults.

    Raises:
        ConfigError: something in them is wrong; the text says what and where.
    """
    flags: Sequence[tuple[str, str]] = ctx.meta.get(COLLECTED, [])
    return load_settings(file=config, flags=flags)
