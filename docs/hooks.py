"""What mkdocs does while it builds the site: pages that lie at the root of the checkout, names of flags in one piece.

README.md and its kind stay where people look for them on a code host
and become pages of the site; links between the two places are turned round.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
FROM_ROOT = ("README.zh-TW.md", "VAST_SETUP.md", "VAST_SETUP.zh-TW.md", "CONTRIBUTING.md", "CHANGELOG.md", "CLAUDE.md")
FLAG = re.compile(r"^(\| )`(--[\w-]+)`", re.M)  # at the beginning of a row: never broken in its middle


def on_files(files: Files, config: Any) -> Files:
    for name in FROM_ROOT:
        text = re.sub(r"\]\(docs/", "](", (ROOT / name).read_text(encoding="utf-8"))
        files.append(File.generated(config, name, content=text.replace("](README.md", "](index.md")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    markdown = re.sub(rf"\]\(\.\./({'|'.join(map(re.escape, FROM_ROOT))})", r"](\1", markdown)
    return FLAG.sub(r"\1`\2`{ .flag }", markdown) if page.file.src_uri == "flags.md" else markdown
