"""Two kinds of pages are made: that about contributing, and lists of every public function.

The examples are part of the site, so that pages can link them as they lie in the repository.

A line ``<!-- every function of normgrad.aclnn -->`` becomes the docstrings of what that package
hands out, in sections by the module where it is defined.
"""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
LIST = re.compile(r"^<!-- every function of (?P<package>\S+) -->$", re.MULTILINE)
TABLES = ("normgrad.aclnn", "normgrad.infiniop")  # whose operators' functions are made of tables
OPTIONS = """
    options:
      show_root_full_path: false
      filters: ["!^_", "!^forward$"]
"""


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs with the files of ``docs``."""
    for pattern in ("*.py", "c/*"):
        for path in sorted((ROOT / "examples").glob(pattern)):
            if path.is_file():
                place = path.relative_to(ROOT).as_posix()
                files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for every page."""
    if page.file.src_uri == "contributors/contributing.md":
        # The repository's own file, with links as the site has them.
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        return text.replace("](docs/contributors/", "](").replace("](docs/", "](../")
    markdown = markdown.replace("](../../examples/", "](../examples/")
    return LIST.sub(lambda found: functions(found["package"]), markdown)


def functions(package: str) -> str:
    """What mkdocstrings is asked for."""
    parts: list[str] = []
    for module, names in sorted(exported(package).items(), key=lambda one: "error" in one[0]):
        title = ast.get_docstring(ast.parse(_source(module))) or module
        parts.append("## " + re.split(r"[.:](?:\s|$)", title)[0])
        parts += [_one(package, module, name) for name in names]
    return "\n\n".join(parts)


def _one(package: str, module: str, name: str) -> str:
    """A function of an operator is made when it is imported: mkdocstrings does not find it."""
    made = getattr(importlib.import_module(package), name) if package in TABLES else None
    if getattr(made, "__module__", "") != package:
        return f"::: {module}.{name}{OPTIONS}"
    lines = []
    example = False
    for line in (inspect.getdoc(made) or "").splitlines():
        title = re.fullmatch(r"(Args|Returns|Example):", line)
        if title:
            example = title[1] == "Example"
            lines += [f"**{title[1]}**", "", *(["```pycon"] if example else [])]
        elif example:
            lines.append(line.removeprefix("    "))
        else:
            text = line.replace("``", "`")
            argument = re.fullmatch(r"    (\w+): (.*)", text)
            lines.append(f"- `{argument[1]}`: {argument[2]}" if argument else text.strip())
    text = "\n".join([*lines, *(["```"] if example else [])])
    parameters = ", ".join(inspect.signature(made).parameters) if callable(made) else ""
    call = f"\n`{name}({parameters})`\n" if inspect.isfunction(made) else ""
    return f'<h3 id="{package}.{name}">{name}</h3>\n{call}\n{text}'


def exported(package: str) -> dict[str, list[str]]:
    """By module the names that a package imports to hand them out; constants are left out."""
    found: dict[str, list[str]] = {}
    for statement in ast.parse(_source(package)).body:
        if isinstance(statement, ast.ImportFrom) and statement.module:
            names = [one.name for one in statement.names if not one.name.isupper()]
            if names != ["*"]:
                found.setdefault(statement.module, []).extend(names)
    return found


def _source(module: str) -> str:
    path = ROOT / "src" / Path(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.read_text(encoding="utf-8")
