"""Build the documentation as pages: `make site`, or python docs/site/build.py DIRECTORY.

The pages of the repository are the source, as they are: links lead from file to file, also to
source code. So everything that a page links to is staged in a copy with the same layout, where code
becomes a page too, and Zensical builds the site from that copy. The result
takes nothing from elsewhere, which is checked, as is every link, before this ends with 0.
"""

import html.parser
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: The pages and their order; what is not named here is found by its folder.
SETTINGS = HERE / "zensical.toml"
LINK = re.compile(r"(?<=\]\()([^)#\s]+)(?=(?:#[^)\s]*)?\))")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PICTURES = {".png", ".svg"}


def main(out: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        pages = stage(copy / "pages")
        shutil.copy(HERE / "extra.css", copy / "pages")
        settings = SETTINGS.read_text().replace("@DECISIONS@", decisions(pages))
        (copy / "zensical.toml").write_text(settings)
        if missing := pages - set(named(tomllib.loads(settings)["project"]["nav"])):
            return fail(f"{SETTINGS.name} has no place for: {', '.join(sorted(missing))}")
        program = Path(sys.executable).with_name("zensical")
        command = [program, "build", "--strict"]
        built = subprocess.run(command, cwd=copy, check=False)  # noqa: S603 - our own command
        if built.returncode:
            return built.returncode
        if problems := sorted(set(check(copy / "site"))):
            return fail("\n".join(problems))
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(copy / "site", out)
    print(f"{len(pages)} pages in {out}: open {out / 'index.html'}")
    return 0


def fail(why: str) -> int:
    print(why, file=sys.stderr)
    return 1


# ------------------------------------------------------------------------------------------ staging


def stage(target: Path) -> set[str]:
    """Copy each page and what it links to; returns the names of the pages in the navigation."""
    names = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
    waiting = [ROOT / name for name in names]
    waiting += sorted((ROOT / "docs").rglob("*.md"))
    pages = {staged(page).as_posix() for page in waiting}
    done = set()
    while waiting:
        source = waiting.pop()
        if source in done:
            continue
        done.add(source)
        there = target / staged(source)
        there.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in PICTURES:
            shutil.copyfile(source, there)
            continue
        text, linked = rewritten(source, content(source))
        there.write_text(text)
        waiting += linked
    return pages


def content(source: Path) -> str:
    """The Markdown of a page, of a folder or of a file of code."""
    name = source.relative_to(ROOT).as_posix()
    if source.suffix == ".md":
        return source.read_text()
    if source.is_dir():
        files = sorted(one for one in source.iterdir() if not one.name.startswith(("_", ".")))
        lines = [f"* [{title(one)}]({one.name})" for one in files]
        return f"# {name}\n\n" + "\n".join(lines) + "\n"
    language = source.suffix.removeprefix(".") or "text"
    return f"# {name}\n\n````{language}\n{source.read_text()}````\n"


def title(source: Path) -> str:
    return (
        source.read_text().splitlines()[0].lstrip("# ") if source.suffix == ".md" else source.name
    )


def rewritten(source: Path, text: str) -> tuple[str, list[Path]]:
    """Links lead to the staged copies; returns the files that they lead to as well."""
    here = source if source.is_dir() else source.parent
    linked = []

    def one(match: re.Match[str]) -> str:
        if "://" in match[0]:
            return match[0]
        to = (here / match[0]).resolve()
        if not to.is_relative_to(ROOT) or not to.exists():
            raise SystemExit(f"{source.relative_to(ROOT)}: {match[0]} is not a file of ours")
        linked.append(to)
        return Path(os.path.relpath(ROOT / staged(to), (ROOT / staged(source)).parent)).as_posix()

    if source.suffix != ".md" and not source.is_dir():
        return text, []  # code is shown as it is
    pieces, last = [], 0
    for fence in FENCED.finditer(text):
        pieces += [LINK.sub(one, text[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*pieces, LINK.sub(one, text[last:])]), linked


def staged(source: Path) -> Path:
    """Where a file or folder of the repository is in the copy, relative to it."""
    name = source.relative_to(ROOT)
    if name == Path("README.md"):
        return Path("index.md")
    if source.is_dir():
        return name / "index.md"
    return name if source.suffix in {".md", *PICTURES} else name.with_name(f"{name.name}.md")


def decisions(pages: set[str]) -> str:
    found = sorted(page for page in pages if page.startswith("docs/decisions/"))
    return "".join(f'    "{page}",\n' for page in found)


def named(nav: list[object]) -> Iterator[str]:
    for one in nav:
        match one:
            case str():
                yield one
            case dict():
                for inner in one.values():
                    yield from named(inner if isinstance(inner, list) else [inner])


# ----------------------------------------------------------------------------------------- checking


class Links(html.parser.HTMLParser):
    """What a page refers to, and the places in it that can be referred to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in {"href", "src"} and value:
                self.links.append((tag, value))
            if name in {"id", "name"} and value:
                self.anchors.add(value)


def check(site: Path) -> Iterator[str]:
    """Each link that leads nowhere, and each file that a browser would fetch from elsewhere."""
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, found in pages.items():
        here = page.relative_to(site)
        for tag, link in found.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if tag != "a" and parts.scheme != "data":
                    yield f"{here}: <{tag}> comes from {link}"
                continue
            to = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            if not to.exists():
                yield f"{here}: there is no {link}"
            elif (
                parts.fragment and to in pages and unquote(parts.fragment) not in pages[to].anchors
            ):
                yield f"{here}: there is no place {link}"
    for style in site.rglob("*.css"):
        for link in re.findall(r"url\(['\"]?(https?:[^)'\"]+)", style.read_text()):
            yield f"{style.relative_to(site)}: comes from {link}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
