#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The page's files and their headers. What it does in a browser is tested by make check-browser.
. tests/integration/lib.sh
CTL=$(dirname "$ATTND")/attnctl
start_daemon --config config/tiny.jsonc
head_of() { curl -s -o /dev/null -D - "$@" | tr -d '\r'; }
field() { sed -n "s/^$1: //p"; }
type_of() {
    case $1 in
        *.html) echo 'text/html; charset=utf-8' ;;
        *.css) echo 'text/css; charset=utf-8' ;;
        *.js) echo 'text/javascript; charset=utf-8' ;;
        *.svg) echo image/svg+xml ;;
    esac
}
policy="default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

for file in server/dashboard/*; do
    name=${file##*/} path=/dashboard/${file##*/}
    [ "$name" != index.html ] || path=/
    head=$(head_of "$URL$path")
    expect "$name: it is the file" 'the same' "$(curl -s "$URL$path" | cmp - "$file" && echo 'the same')"
    expect "$name: its type" "$(type_of "$name")" "$(field Content-Type <<<"$head")"
    expect "$name: what it may load" "$policy" "$(field Content-Security-Policy <<<"$head")"
    expect "$name: nosniff, no-referrer, no-cache" 'nosniff no-referrer no-cache' \
        "$(field X-Content-Type-Options <<<"$head") $(field Referrer-Policy <<<"$head") $(field Cache-Control <<<"$head")"
    tag=$(field ETag <<<"$head")
    expect "$name: a client that has it" '304 0' "$(curl -s -o /dev/null -w '%{http_code} %{size_download}' -H "If-None-Match: $tag" "$URL$path")"
    expect "$name: another tag" 200 "$(curl -s -o /dev/null -w '%{http_code}' -H 'If-None-Match: "0123456789abcdef"' "$URL$path")"
    expect "$name: HEAD has its length" "$(stat -c %s "$file")" "$(curl -s -I "$URL$path" | tr -d '\r' | field Content-Length)"
    tags+=("$tag")
done
expect 'every file has a tag of its own' "${#tags[@]}" "$(printf '%s\n' "${tags[@]}" | sort -u | wc -l)"
expect 'compressed they are at most 64 KiB' yes "$(for file in server/dashboard/*; do gzip -9c "$file" | wc -c; done | awk '{ n += $1 } END { print (n <= 65536 ? "yes" : n) }')"
expect 'the page names no other host' '' "$(grep -rnoE '(https?:)?//[a-z0-9.-]+' server/dashboard/*.html server/dashboard/*.css server/dashboard/*.js | grep -v 'www.w3.org/2000/svg')"
expect 'no code is inline, and no style' '' "$(grep -nE '<style|style=| on[a-z]+=|javascript:|<script>' server/dashboard/index.html)"
expect 'text is never read as markup or code' '' "$(grep -nE 'innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|setTimeout\(["'"'"'`]' server/dashboard/*.js)"
expect 'every file that is named is there' '' "$(
    { sed -n 's/.*\(src\|href\)="dashboard\/\([^"]*\)".*/\2/p' server/dashboard/index.html; sed -n "s/.*from '\.\/\([^']*\)'.*/\1/p" server/dashboard/*.js; } | sort -u |
        while read -r name; do [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/dashboard/$name")" = 200 ] || echo "$name"; done)"

problem() { jq -r '"\(.status) \(.code)"'; }
expect 'a file that is none' '404 not_found' "$(curl -s "$URL/dashboard/none.js" | problem)"
expect 'a folder is none' '404 not_found 404 not_found' "$(curl -s "$URL/dashboard/" | problem) $(curl -s "$URL/dashboard" | problem)"
expect 'no way out of it' '404 not_found 404 not_found' "$(curl -s --path-as-is "$URL/dashboard/../index.html" | problem) $(curl -s --path-as-is "$URL/dashboard/..%2findex.html" | problem)"
expect 'an error has no policy of a page' no-store "$(head_of "$URL/dashboard/none.js" | field Cache-Control)"
expect 'it is only read' '405 method_not_allowed GET, HEAD' "$(curl -s -X POST "$URL/" | problem) $(head_of -X POST "$URL/" | field Allow)"
expect 'a client that takes no such thing' '406 406' "$(curl -s -o /dev/null -w '%{http_code}' -H 'Accept: application/json' "$URL/") $(curl -s -o /dev/null -w '%{http_code}' -H 'Accept: text/html' "$URL/dashboard/app.js")"
expect 'another Host, without keys' 403 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Host: attnd.example' "$URL/")"
stop_daemon

# With keys the page needs none; what it shows does.
(umask 077; "$CTL" --json key new one read | jq '{keys: [.entry]}' >"$WORK/keys")
start_daemon --config config/tiny.jsonc --set "keys.file=$WORK/keys"
expect 'with keys: the page, a file, the figures' '200 200 401' "$(for path in / /dashboard/app.js /stats; do curl -s -o /dev/null -w '%{http_code}\n' "$URL$path"; done | paste -sd' ')"
expect 'a key that is none does not matter' 200 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Authorization: Bearer x' "$URL/")"
stop_daemon
finish
