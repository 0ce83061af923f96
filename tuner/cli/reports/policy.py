"""The content security policy of this project's pages: what the browser lets them do."""

import re
from base64 import b64encode
from hashlib import sha256
from html import escape

from tuner.base.expressions import expression

# Whatever a page does not name, it may not do: no script, picture, font or connection but these, none from elsewhere.
# To each a page adds the sums of the scripts that stand in it, so that none which a text brings along can run.
NOTHING = {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
OF_ONE_FILE = {  # `plot page`; Bokeh puts styles into what it draws, and saves a picture as a blob
    **NOTHING,
    "script-src": "",
    "style-src": "'unsafe-inline'",
    "img-src": "data: blob:",
}
OF_THE_SITE = {  # the theme puts styles into its drawings, and searches in a worker
    **NOTHING,
    "script-src": "'self'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data:",
    "font-src": "'self'",
    "connect-src": "'self'",
    "worker-src": "'self'",
    "manifest-src": "'self'",
}
_SCRIPT = expression(r"<script\b([^>]*)>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_HANDLER = expression(r"<[a-z][^<>]*\son[a-z]+\s*=[^<>]*>", re.IGNORECASE)
_HEAD = expression(r"<head\b[^>]*>\s*(?:<meta charset=[^>]*>)?", re.IGNORECASE)


def with_policy(html: str, allowed: dict[str, str]) -> str:
    """Adds a policy to the head of a page: ``allowed``, and the hashes of the scripts that the page contains.

    ValueError if the page has no head, or has a script in an attribute, which no hash can allow.
    """
    scripts = [(attributes, text) for attributes, text in _SCRIPT.findall(html) if "src=" not in attributes]
    if held := _HANDLER.search(_SCRIPT.sub("", html)):
        raise ValueError(f"a script in an attribute: {held[0]}")
    sums = [f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for _, text in scripts if text.strip()]
    words = {**allowed, "script-src": " ".join([allowed["script-src"], *dict.fromkeys(sums)]).strip() or "'none'"}
    policy = "; ".join(f"{name} {value}" for name, value in words.items())
    meta = f'\n<meta http-equiv="Content-Security-Policy" content="{escape(policy).replace("&#x27;", chr(39))}">'
    made, found = _HEAD.subn(lambda head: head[0] + meta, html, count=1)
    if not found:
        raise ValueError("a page without <head> can hold no policy")
    return made
