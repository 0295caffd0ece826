#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""links.py FOLDER [ROOT] - what is wrong with the installed documents of FOLDER, a line each: a link whose file or heading is not there, a path below /usr/share
(or another PREFIX/share) that is not below ROOT, the names that programs and files have in the sources, marks of their tests; a document to which no link leads."""
import os
import re
import sys

IN_SOURCES = ("build/release", "bash bootstrap", "packaging/debian", "packaging/prometheus", "packaging/kubernetes", "packaging/grafana", "<!--", "newcomers")
PATH = re.compile(r"(?<![\w.])(/[\w/.-]*/share/(?:doc/)?attnd(?:/[\w.-]*[\w-])*)")


def slug(heading):
    """A heading's name in a link, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()).replace(" ", "-")


def problems(folder, root):
    documents = sorted(os.path.join(at, name) for at, _, names in os.walk(folder) for name in names if name.endswith(".md") and not name.startswith("CHANGELOG"))
    text, headings, reached = {}, {}, {os.path.join(folder, "README.md")}
    for document in documents:
        with open(document, encoding="utf-8") as file:
            text[document] = file.read()
        headings[document] = {slug(h) for h in re.findall(r"^#+ (.*)$", text[document], re.M)}
    if not documents:
        yield f"{folder}: no documents"
    for document in documents:
        name = os.path.relpath(document, folder)
        for target in re.findall(r"\]\(([^)\s]*)\)", text[document]):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, heading = target.partition("#")
            to = os.path.normpath(os.path.join(os.path.dirname(document), path)) if path else document
            reached.add(to)
            if not os.path.exists(to):
                yield f"{name}: {target} is not there"
            elif heading and heading not in headings.get(to, set()):
                yield f"{name}: {target}: no such heading"
        for path in set(PATH.findall(text[document])):
            if not os.path.exists(root + path):
                yield f"{name}: {path} is not there"
        for word in IN_SOURCES:
            if word in text[document]:
                yield f"{name}: {word}"
    for document in set(documents) - reached:
        yield f"{os.path.relpath(document, folder)}: no link leads to it"


for problem in problems(sys.argv[1].rstrip("/"), sys.argv[2] if len(sys.argv) > 2 else ""):
    print(problem)
