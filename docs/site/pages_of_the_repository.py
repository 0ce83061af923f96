"""Pages of the site that are not in docs/: those that lie elsewhere in the repository, and what --help says."""

import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tuner import cli
from tuner.cli.reports.policy import OF_THE_SITE, with_policy

ROOT = Path(__file__).parents[2]
PAGES = {  # in the repository: in the site
    "README.md": "site/repository.md",
    "CONTRIBUTING.md": "site/contributing.md",
    "CHANGELOG.md": "site/changelog.md",
    "csrc/README.md": "site/csrc.md",
}
OPTIONS = "site/options.md"
ABOUT_OPTIONS = "# Every option\n\nWhat `--help` says of each command ([what each answers](../commands.md))."
REFERENCE = re.compile(r"^\[[^\]]+\]: \.\./.*$", re.M)  # of the changelog, to pages of the repository's host
OF_PICTURE = re.compile(r"\)\]\(docs/([^)]+)\)")  # the link of a picture, which has a link of its own inside
LINK = re.compile(r"\[([^\]]*)\]\(([^)#:]+)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, place in PAGES.items():
        text = (ROOT / page).read_text("utf-8")
        files.append(
            File.generated(
                config, place, content=OF_PICTURE.sub(r")](../\1)", LINK.sub(_from_site, REFERENCE.sub("", text)))
            )
        )
    command = click.Context(cli.everything, info_name="nccl-tuner", terminal_width=100, max_content_width=100)
    files.append(File.generated(config, OPTIONS, content="\n\n".join([ABOUT_OPTIONS, *_helps(command)])))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links from docs/ to those pages. Fails where a link leads to a file that is left out of the site."""
    if page.file.src_uri in PAGES.values():
        return markdown
    for _, target, _ in LINK.findall(markdown):
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), target))
        if (file := files.get_file_from_path(name)) is not None and file.inclusion.is_excluded():
            raise PluginError(f"{page.file.src_uri}: {target} is left out of the site: docs/site/mkdocs.yml")
    for source, place in PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({place}")
    return markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    return with_policy(output, OF_THE_SITE)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    """Of what is no page of its own: 404.html, the map of the site."""
    return with_policy(output, OF_THE_SITE) if template_name.endswith(".html") else output


def on_post_build(config: MkDocsConfig) -> None:
    """The files that the page to try looks answers up in, and the Python that it reads files with."""
    folder = Path(config.site_dir) / "try"
    folder.mkdir(exist_ok=True)
    for pattern in ("*.picks.gz", "*.measured.json", "index.json"):
        for file in (ROOT / "build" / "try").glob(pattern):
            shutil.copy(file, folder)
    if (python := ROOT / "build" / "python").is_dir():
        shutil.copytree(python, Path(config.site_dir) / "python", dirs_exist_ok=True)


def _helps(context: click.Context) -> Iterator[str]:
    """Of a command and of those below it."""
    yield f"## {context.command_path}\n\n```text\n{context.command.get_help(context)}\n```"
    if isinstance(context.command, click.Group):
        for name in context.command.list_commands(context):
            command = context.command.get_command(context, name)
            assert command is not None
            yield from _helps(click.Context(command, parent=context, info_name=name))


def _from_site(link: re.Match[str]) -> str:
    """A link of such a page; a file of the repository that is no page of the site is named without one."""
    text, target, anchor = link[1], link[2], link[3] or ""
    target = target.removeprefix("../")
    if target in PAGES:
        return f"[{text}]({Path(PAGES[target]).name}{anchor})"
    if target.startswith("docs/") and target.endswith((".md", ".png", ".svg")):
        return f"[{text}](../{target.removeprefix('docs/')}{anchor})"
    return text
