"""The prose for people: its links lead somewhere, it is up to date with the code, and nothing is left out."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

import droprl
from droprl import Adaptation
from droprl.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_and_picture_is_there(page: Path) -> None:
    assert broken_links(page) == []


def test_a_broken_link_is_seen(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A fair `F-BC`, at last\n```\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md) ![b](none.svg) [c](other.md#a-fair-f-bc-at-last) [d](other.md#no-heading) [e](#here)\n"
        "[f](https://example.org/none)\n```\n[g](not-a-link.md)\n```\n## Here\n"
    )
    assert broken_links(page) == ["none.svg", "other.md#no-heading"]


@pytest.fixture
def make_tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_tables

    return make_tables


@pytest.fixture
def make_site(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(DOCS))
    import make_site

    return make_site


def test_every_algorithm_and_setting_has_its_place_on_the_site(make_tables: Any) -> None:
    pages = {name: make_tables.filled((DOCS / name).read_text()) for name in ("algorithms.md", "settings.md", "api.md")}
    for name, kind in ALGORITHMS.items():
        assert f"| [`{name}`](settings.md#{name}) | `{kind.__name__}` |" in pages["algorithms.md"]
        assert f"\n## {name}\n" in pages["settings.md"]
        assert f"\n::: droprl.{kind.__name__}\n" in pages["api.md"]
    settings = pages["settings.md"]
    # By hand: a default that the small preset changes, a choice, a sign that a table must not see, and an heir.
    assert "| `width` | `512` (`128`) | Units of each hidden layer. |" in settings
    assert "| `region` | `trust` | `trust`, `box`, `none`. " in settings
    assert "\\|z − z_n\\|" in settings
    assert "It has the settings of [drop](#drop) except `adaptation` and `sample_actions`, and:" in settings


def test_no_list_of_algorithms_is_kept_by_hand() -> None:
    """What is in the repository has marks where the site has the lists. A new algorithm changes no page."""
    for name in ("algorithms.md", "settings.md", "api.md"):
        text = (DOCS / name).read_text()
        assert "<!-- " in text
        assert not any(f"\n## {algorithm}\n" in text or f"| [`{algorithm}`]" in text for algorithm in ALGORITHMS)


def test_a_setting_is_said_by_the_string_below_it(make_tables: Any) -> None:
    said = make_tables.field_docstrings(Adaptation)
    assert set(said) == set(Adaptation.__dataclass_fields__)
    assert said["reinference_interval"] == "m of DROP(m): best-ada and grad-ada infer z again every m steps."
    assert make_tables.field_docstrings(ALGORITHMS["fbc"])["width"] == "Units of each hidden layer."  # from its parent


def test_the_reference_names_everything_public_and_nothing_else(make_tables: Any) -> None:
    page = make_tables.filled((DOCS / "api.md").read_text(encoding="utf-8"))
    named = re.findall(r"^::: (droprl\.[\w.]+)$", page, re.MULTILINE)
    short = [name.rpartition(".")[2] for name in named]
    assert len(short) == len(set(short))
    assert set(droprl.__all__) - {"__version__"} <= set(short)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(module), attribute), name


def test_every_page_is_in_the_index_and_on_the_site(make_site: Any) -> None:
    index, site = ((DOCS / name).read_text(encoding="utf-8") for name in ("index.md", "mkdocs.yml"))
    pages = {page.name for page in DOCS.glob("*.md")} - {"index.md"}
    assert {name for name in pages if f"]({name})" in index} == pages
    assert {name for name in pages if f": {name}\n" in site} == pages
    assert {name_of(page) for page in make_site.pages()} >= {
        "README.md",
        "CHANGELOG.md",
        "benchmarks/speed/README.md",
        *(f"docs/{name}" for name in pages),
    }


def test_links_of_the_site_stay_inside_it(make_site: Any) -> None:
    text, needed = make_site.for_site(
        "[a](deploy.md#serving) ![b](figures/live.png) [c](../benchmarks/speed/README.md#scale) "
        "[d\ne](../benchmarks/demo)\n"
        "```\n[f](../examples/x.py)\n```\n[g](../README.md) [h](#here) [i](https://example.org)",
        DOCS / "trust.md",
    )
    assert text == (
        "[a](deploy.md#serving) ![b](figures/live.png) [c](benchmarks/speed/index.md#scale) d\ne\n"
        "```\n[f](../examples/x.py)\n```\n[g](index.md) [h](#here) [i](https://example.org)"
    )
    names = ["docs/deploy.md", "docs/figures/live.png", "benchmarks/speed/README.md", "README.md"]
    assert [name_of(path) for path in needed] == names


def test_the_readme_takes_three_minutes() -> None:
    assert (ROOT / "README.md").stat().st_size < 8_500
