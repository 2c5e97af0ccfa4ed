"""Gathers the pages of the site in build/pages, and lets Zensical make build/site of them: `make docs`.

`make_tables` adds what pages take from the code. Zensical has a virtual environment of its own, `.venv-docs`.

The pages are docs/*.md, and every Markdown file and picture that a page links to. The site does not hold folders,
scripts and results: a link to one of these becomes its text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from make_tables import filled

ROOT = Path(__file__).resolve().parents[1]
DOCS, BUILD = ROOT / "docs", ROOT / "build"
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
KEPT = (".md", ".svg", ".png")


def pages() -> dict[Path, str]:
    """Every page's text for the site by its place in the repository, found by following links from docs/."""
    found: dict[Path, str] = {}
    left = sorted(DOCS.glob("*.md"))
    while left:
        page = left.pop()
        if page not in found:
            found[page], linked = for_site(filled(page.read_text(encoding="utf-8")), page)
            left += [path for path in linked if path.suffix == ".md"]
    return found


def for_site(text: str, page: Path) -> tuple[str, list[Path]]:
    """The text with its links as the site wants them, and the files that it needs."""
    needed: list[Path] = []

    def changed(link: re.Match[str]) -> str:
        name, target = link.groups()
        if re.match(r"[a-z]+:|#", target):
            return link[0]
        path, hash_, anchor = target.partition("#")
        file = (page.parent / path).resolve()
        if file.suffix not in KEPT:
            return name
        needed.append(file)
        there = os.path.relpath(place(file), place(page).parent)
        return f"[{name}]({Path(there).as_posix()}{hash_}{anchor})"

    parts = FENCED.split(text)  # every second part is code
    return "".join(part if i % 2 else LINK.sub(changed, part) for i, part in enumerate(parts)), needed


def place(file: Path) -> Path:
    """Where a file of the repository stands among the pages."""
    if file == DOCS / "index.md":  # the site's first page is the README
        return Path("contents.md")
    inside = file.relative_to(DOCS) if file.is_relative_to(DOCS) else file.relative_to(ROOT)
    return inside.with_name("index.md") if inside.name == "README.md" else inside


def main() -> None:
    target = BUILD / "pages"
    shutil.rmtree(target, ignore_errors=True)
    for page, text in pages().items():
        write(target / place(page), text.encode())
        for file in for_site(page.read_text(encoding="utf-8"), page)[1]:
            if file.suffix != ".md":
                write(target / place(file), file.read_bytes())
    shutil.copy(DOCS / "site.css", target)
    shutil.copy(DOCS / "mkdocs.yml", BUILD)
    build = [str(ROOT / ".venv-docs" / "bin" / "zensical"), "build", "--clean", "--strict"]
    if subprocess.run(build, cwd=BUILD, check=False).returncode:
        raise SystemExit("the site was not built: see above")
    print(f"{BUILD / 'site' / 'index.html'} is built")


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


if __name__ == "__main__":
    main()
