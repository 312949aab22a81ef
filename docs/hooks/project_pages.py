"""Hook of mkdocs: SECURITY.md, CONTRIBUTING.md and CHANGELOG.md of the repository become pages of the site.

Their links to docs/ and the links of pages to them are changed so that they hold on the site and on disk alike.
Links to code, tests and other files that are no page become plain text.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
PAGES = {"SECURITY.md": "security.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages, as if they lay in docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Change the links of a page."""
    if page.file.src_uri in PAGES.values():
        return LINK.sub(lambda found: from_root(found, files), markdown)
    return LINK.sub(to_root, markdown)


def from_root(found: re.Match[str], files: Files) -> str:
    """A link of a page of the repository, as it must be in docs/."""
    text, target = found.groups()
    if target.startswith(("#", "http:", "https:", "mailto:")):
        return found[0]
    path, mark, fragment = target.partition("#")
    place = PAGES.get(path, path.removeprefix("docs/"))
    return f"[{text}]({place}{mark}{fragment})" if files.get_file_from_path(place) else text


def to_root(found: re.Match[str]) -> str:
    """A link of a page of docs/; only those to the pages above change."""
    text, target = found.groups()
    path, mark, fragment = target.partition("#")
    name = path.removeprefix("../")
    return f"[{text}]({PAGES[name]}{mark}{fragment})" if path.startswith("../") and name in PAGES else found[0]
