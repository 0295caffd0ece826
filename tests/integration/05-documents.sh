#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of every document: run here, by the test that the document names, or marked with the reason why not. Sessions are
# compared with their printed output. documents.sh says how a block is marked.
#
#   bash tests/integration/05-documents.sh docs/TOUR.md     one document
. tests/integration/lib.sh
. tests/integration/documents.sh

documents=("$@")
[ $# -gt 0 ] || documents=(*.md docs/*.md docs/results/*.md docs/decisions/README.md clients/python/*.md packaging/*.md)
for document in "${documents[@]}"; do
    [ -e "$document" ] || continue
    check_marks "$document"
    head -n 3 "$document" | grep -q '^<!-- all run by: ' && continue
    case $document in docs/TOUR.md) least=25 ;; docs/WORKLOADS.md) least=5 ;; *) least=0 ;; esac
    check_document "$document" "$document" $least
done
[ $# -eq 0 ] || finish

expect 'every decision is in their index, once' '' "$(for file in docs/decisions/[0-9]*.md; do grep -o -F "](${file##*/})" docs/decisions/README.md | uniq -c | grep -q '^ *1 ' || echo "$file"; done)"

# ---- that it can fail
is_good() { # whether the document on standard input is
    FAILED=0
    cat >"$WORK/other.md"
    check_marks "$WORK/other.md" >/dev/null
    check_document other "$WORK/other.md" >/dev/null
    [ $FAILED = 0 ] && echo yes || echo no
}
finds() { expect "it finds $1" no "$(is_good)"; }
expect 'a good document is good' yes "$(printf '%s' '# Good

[a link](other.md)

    $ printf "one\n\ntwo\n1.5 s\n"
    one

    two
    … s
    $ seq 9
    1
    ...
    9

<!-- not run: it has a reason -->
    bash -c false
' | is_good)"
finds 'a command that fails' <<<'    make no_such_target'
printf '%ssh\ncd build && false\n%s\n' "$FENCE" "$FENCE" | finds 'one in a fence'
printf '%sconsole\n$ echo one\ntwo\n%s\n' "$FENCE" "$FENCE" | finds 'another output'
printf '%s\necho one\n%s\n' "$FENCE" "$FENCE" | finds 'a fence that says nothing'
printf '%stext\ncurl -s $URL/stats\n%s\n' "$FENCE" "$FENCE" | finds 'a command that is called text'
printf '%sjson\n{"a": ...}\n%s\n' "$FENCE" "$FENCE" | finds 'what is not JSON'
printf '%spython\nimport attnd\n%s\n' "$FENCE" "$FENCE" | finds 'Python that no test runs'
printf '<!-- not run: -->\n    bash -c true\n' | finds 'a mark without a reason'
printf '<!-- run by: tests/integration/01-start.sh -->\n    bash -c true\n' | finds 'a test that does not run it'
printf '[there](docs/NOWHERE.md)\n' | finds 'a link that leads nowhere'
finish
