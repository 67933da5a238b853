"""Generated documents: complete, true, and the same as in docs/."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from headrace import settings
from headrace.settings import load_settings
from headrace.settings.reference import loaded_toml, read_docs, reference_markdown, sample_toml
from headrace.settings.tree import TopicSettings, sections, setting_fields

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("name", "text"), [("headrace.sample.toml", sample_toml()), ("settings.md", reference_markdown())]
)
def test_docs_are_what_the_code_generates(name: str, text: str) -> None:
    """The sample and the reference are generated, and compared here."""
    assert (ROOT / "docs" / name).read_text() == text, "run `make docs`"


def test_every_setting_is_documented() -> None:
    """A docstring per field."""
    for cls in [*sections().values(), TopicSettings]:
        docs = read_docs()[cls.__name__]
        assert set(docs) == {"", *(declared.name for declared in fields(cls))}
        for name, text in docs.items():
            assert text.endswith((".", ")")), (cls, name)


def test_every_section_is_named_by_the_package() -> None:
    """Other packages take them from there."""
    assert {cls.__name__ for cls in sections().values()} <= set(settings.__all__)


def test_sample_with_every_line_enabled_gives_the_defaults(tmp_path: Path) -> None:
    """Removing the # of a line must change nothing by itself."""
    enabled = "\n".join(
        line[1:] if line.startswith("#") and not line.startswith(("# ", "#[")) else line
        for line in sample_toml().partition("#[topics")[0].splitlines()
    )
    file = tmp_path / "headrace.toml"
    file.write_text(enabled)
    loaded = load_settings(file=file, environ={})
    assert loaded.settings == load_settings(environ={}).settings
    assert all(origin.startswith(str(file)) for origin in loaded.origins.values())


def test_sample_names_every_setting() -> None:
    """A setting that is missing from the sample would never be found."""
    text = sample_toml()
    for setting in setting_fields():
        assert f"\n#{setting.name} = " in text
    tomllib.loads(text)


def test_loaded_settings_print_as_a_file_that_loads_to_the_same(tmp_path: Path) -> None:
    """What `config print` shows is a settings file."""
    source = tmp_path / "a.toml"
    source.write_text('[access]\nrules_file = "quote\\" \\u007f \\u00e9"\n[topics."a.b"]\ndurability = "async"\n')
    flags = [("--store.segment-bytes", "1MiB")]
    loaded = load_settings(file=source, environ={}, flags=flags)
    for origins in (False, True):
        copy = tmp_path / "b.toml"
        copy.write_text(loaded_toml(loaded, origins=origins))
        assert load_settings(file=copy, environ={}).settings == loaded.settings
