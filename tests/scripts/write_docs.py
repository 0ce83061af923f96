"""`make docs`: writes into README.md and docs/*.md what their commands print now, and what is derived from tables."""

from tests.support import derived_docs, json_schemas
from tests.support.doc_sessions import PAGES, ROOT, rewritten


def main() -> None:
    for page in PAGES:
        if (now := rewritten(page)) != page.read_text("utf-8"):
            page.write_text(now, "utf-8")
            print(f"wrote {page.relative_to(ROOT)}")
    (ROOT / "docs" / "llms.txt").write_text(derived_docs.llms(), "utf-8")
    for name in json_schemas.write(ROOT / "docs" / "schemas"):
        print(f"wrote docs/schemas/{name}")


if __name__ == "__main__":
    main()
