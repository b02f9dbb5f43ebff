"""What mkdocs asks for while it builds the site: pages that are not in docs/, and links to sources.

Tests: tests/website/test_site.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, Final

import gallery
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
STYLE: Final = Path(__file__).with_name("haiprof.css")
GALLERY: Final = ROOT / "build" / "gallery"
#: Pages of the site that are files beside docs/.
BESIDE: Final = {"README.md": "index.md", "CHANGELOG.md": "CHANGELOG.md",
                 "CONTRIBUTING.md": "CONTRIBUTING.md"}  # fmt: skip
LINK: Final = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
#: Their text is shown; of others, such as results of benchmarks, only the name.
LONGEST: Final = 100_000


def on_config(config: MkDocsConfig) -> None:
    """Have headings the anchors that they have on GitHub, which pages link to."""
    config.mdx_configs["toc"]["slugify"] = anchor


def anchor(heading: str, separator: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def on_pre_build(config: MkDocsConfig) -> None:
    """Have the notebook run where the runs of the gallery are, and its kernel say only errors."""
    profile = ROOT / "build" / "ipython" / "profile_default"
    profile.mkdir(parents=True, exist_ok=True)
    # Else it warns that it can be reached by TCP, as any kernel that nbconvert starts.
    (profile / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 40\n")
    os.environ["IPYTHONDIR"] = str(profile.parent)
    if not GALLERY.is_dir():
        raise PluginError(f"{GALLERY} is missing: make docs records the jobs of the gallery")
    os.chdir(GALLERY)


@event_priority(100)  # before mkdocs-jupyter looks for notebooks
def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are made from code, the gallery, and the sources that pages link to."""
    pages = reference.pages() | {"gallery/index.md": gallery.page()}
    written = {file.src_uri: Path(str(file.abs_src_path)) for file in files.documentation_pages()}
    texts = {f"docs/{uri}": path.read_text("utf-8") for uri, path in written.items()
             if path.suffix == ".md"}  # fmt: skip
    texts |= {name: (ROOT / name).read_text("utf-8") for name in BESIDE}
    for name, uri in BESIDE.items():
        pages[uri] = linked(texts[name], name, uri)
    for source in sorted({path for name, text in texts.items() for path in sources(text, name)}):
        pages[source_page(source)] = source_text(source)
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for picture in gallery.PICTURES:
        uri, report = f"gallery/{picture.name}.html", GALLERY / f"{picture.name}.html"
        files.append(File.generated(config, uri, abs_src_path=str(report)))
    style = File.generated(config, "assets/haiprof.css", abs_src_path=str(STYLE))
    files.append(style)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Have links to files outside of docs/ lead to their pages."""
    if page.file.generated_by is not None:
        return markdown
    return linked(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Mark the guides, whose output has long lines."""
    return f'<div class="guide">{html}</div>' if page.file.src_uri.startswith("guides/") else html


def target(link: str, name: str) -> str:
    """Return which file of the repository a link of the file ``name`` leads to."""
    return os.path.normpath(PurePosixPath(name).parent / link)


def sources(text: str, name: str) -> set[str]:
    """Return the files and folders that are no pages of the site, but that a page links to."""
    found = {target(match[2], name) for match in LINK.finditer(text)}
    return {path for path in found if not path.startswith("docs/") and path not in BESIDE
            and (ROOT / path).exists()}  # fmt: skip


def source_page(path: str) -> str:
    """Return where the site has the page of a source."""
    return f"sources/{path}.md"


def source_text(path: str) -> str:
    """Return the page of a file, or of a folder with its files."""
    place = ROOT / path
    if place.is_dir():
        names = sorted(each.name for each in place.iterdir() if each.name != "__pycache__")
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text = place.read_text("utf-8")
    language = {".py": "python", ".yaml": "yaml", ".sh": "sh", ".h": "cpp"}.get(place.suffix, "")
    if len(text) > LONGEST:
        return f"# {path}\n\nIn the repository.\n"
    return f"# {path}\n\n````{language}\n{text}````\n"


def linked(text: str, name: str, uri: str) -> str:
    """Return the text of the file ``name`` with the links that it needs as the page ``uri``."""

    def replaced(match: re.Match[str]) -> str:
        path = target(match[2], name)
        if path.startswith("docs/"):
            to = path.removeprefix("docs/")
        elif path in BESIDE:
            to = BESIDE[path]
        elif (ROOT / path).exists():
            to = source_page(path)
        else:
            return match[0]
        relative = os.path.relpath(to, PurePosixPath(uri).parent)
        return f"{match[1]}{relative}{match[3] or ''}"

    return LINK.sub(replaced, text)
