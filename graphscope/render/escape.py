"""Text made safe for the formats: data stays data, whatever it looks like.

``style.visible`` has already written control characters and lone surrogates as escapes, so that
what arrives here can be encoded and is allowed in XML.
"""

from __future__ import annotations

import re

_MARKUP = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;"}
# Graphviz replaces \N, \G, \E, \T, \H and \L in HTML-like labels too, and there as well two backslashes are one.
_LABEL = {**_MARKUP, ord("\\"): "\\\\"}
_KEYWORDS = {"node", "edge", "graph", "digraph", "subgraph", "strict"}
_needs_label_escape = re.compile(r'[&<>"\\]').search


def to_label(text: str) -> str:
    r"""Text for the inside of an HTML-like label of Graphviz.

    Source: graphviz.org/doc/info/shapes.html#html.

    >>> to_label("4×2"), to_label('<b>&amp;"'), to_label(r"\N")
    ('4×2', '&lt;b&gt;&amp;amp;&quot;', '\\\\N')
    """
    if _needs_label_escape(text):
        text = text.translate(_LABEL)
    return text


def to_identifier(name: str) -> str:
    r"""An ID of the DOT language: bare where the language allows it, else quoted.

    >>> to_identifier("n0"), to_identifier("node"), to_identifier('fc "1"')
    ('n0', '"node"', '"fc \\"1\\""')
    """
    if name.isascii() and name.isidentifier() and name.lower() not in _KEYWORDS:
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def to_tooltip(text: str) -> str:
    r"""A quoted DOT string that is a tooltip and shows the text as typed.

    Source: graphviz.org/docs/attr-types/escString; Graphviz 14 reads a tooltip twice that way, so that it takes four
    backslashes to show one. A line break is ``\n``; entities are read too, so ``&`` becomes one.

    >>> print(to_tooltip('a "b" \\N'), to_tooltip("one\ntwo"), to_tooltip("R&amp;D"))
    "a \"b\" \\\\N" "one\ntwo" "R&amp;amp;D"
    """
    escaped = text.replace("\\", "\\\\\\\\").replace('"', '\\"').replace("&", "&amp;").replace("\n", "\\n")
    return f'"{escaped}"'


def to_markup(text: str) -> str:
    """Text for XML and HTML, in elements and in quoted attributes.

    >>> to_markup('<b> & "c"')
    '&lt;b&gt; &amp; &quot;c&quot;'
    """
    return text.translate(_MARKUP)
