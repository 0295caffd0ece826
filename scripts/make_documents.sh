#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# make_documents.sh ATTND FOLDER - write what is made of the daemon's own tables: FOLDER/METRICS.md, FOLDER/attnd.jsonc.5
# and FOLDER/attnd-keys.5.
# `make documents` puts them where they belong; tests/integration/61-documents.sh fails when they are old.
set -eu
attnd=$1 folder=$2
cd "$(dirname "$0")/.."

metrics() {
    cat <<'TEXT'
# Metrics

<!-- Made by scripts/make_documents.sh (`make documents`) of the table in server/metrics.c: change that. -->

`GET /metrics` answers in Prometheus' text format, version 0.0.4. With keys it wants the scope `read` (with `admin` the samples of all keys are there, else those of its own, which is too little for the alerts); the management listener
(`management.listen`) answers without one. An answer is one question to the engine, and costs it some microseconds.

    scrape_configs:
      - job_name: attnd
        static_configs:
          - targets: ['127.0.0.1:8400']
        authorization:          # with keys.file
          credentials_file: /etc/prometheus/attnd.key

packaging/prometheus/ has alert rules, with tests for promtool, and a dashboard for Grafana. docs/OPERATIONS.md says at which of these to look
when.

`process_` are the names that every exporter has. `vllm:` are names that dashboards made for vLLM know, of what means the same here;
dashboards that choose by `model_name` find `attnd`. `vllm:prompt_tokens_total` and `vllm:generation_tokens_total` have no alias, since
an append does not say which of the two it is: `attnd_tokens_appended_total` is both. `vllm:request_queue_time_seconds` has none
either: it is of requests, `attnd_call_queue_seconds` of calls, of which a request makes many. `promtool check metrics` says of each
that "metric names should not contain ':'", which is for names that rules make: these are named so since vLLM names them so.

TEXT
    "$attnd" --describe metrics | awk -F'\t' '
        function head(title) { printf "%s## %s\n\n| name | type | labels | meaning |\n|---|---|---|---|\n", (NR > 1 ? "\n" : ""), title }
        NR == 1 { head("attnd") }
        /^process_/ && !process++ { head("The process") }
        /^vllm:/ && !vllm++ { head("Names of vLLM") }
        { printf "| `%s` | %s | %s | %s |\n", $1, $2, $3, $4 }'
}

as_roff='function text(s) { gsub(/\\/, "\\e", s); gsub(/-/, "\\-", s); sub(/^[.\x27]/, "\\\\\\&&", s); return s }'

# Keys of a section stand together, so a heading comes before the first of each.
keys() {
    cat <<'TEXT'
.\" SPDX-License-Identifier: Apache-2.0
.\" Made by scripts/make_documents.sh (make documents) of the table in config/config.c: change that.
.TH ATTND.JSONC 5 "" attnd "File formats"
.SH NAME
attnd.jsonc \- configuration of attnd
.SH DESCRIPTION
The file that
.BR attnd (8)
reads with
.BR \-\-config .
It is one JSON object, in which comments (// and /* */) are allowed. Keys with a dot are members of an object:
.I pool.blocks
is
.PP
.RS
.EX
{ "pool": { "blocks": 4096 } }
.EE
.RE
.PP
A key can also be set by
.BI \-\-set\~ PATH = VALUE
or in the environment, in upper case after ATTND_ and with two underscores for the dot: ATTND_POOL__BLOCKS=4096. The command line is
stronger than the environment, which is stronger than the file, which is stronger than the default. A key that does not exist is an error;
.B attnd \-\-check\-config
names it with file, line and column. A size may be written as "512MiB".
.PP
An
.I address
is HOST:PORT, [HOST]:PORT, unix:PATH or fd:N, or an object {"address": ..., "anonymous": ..., "proxy_protocol": ..., "mode": ..., "group": ...}.
.SH KEYS
TEXT
    "$attnd" --describe keys | awk -F'\t' "$as_roff"'
        {
            section = index($1, ".") ? substr($1, 1, index($1, ".") - 1) : ""
            if (section != "" && section != before) printf ".SS %s\n", text(section)
            before = section
            printf ".TP\n.B %s\n%s; default %s\n.br\n%s\n", text($1), text($3), text($2), text($4)
        }'
    cat <<'TEXT'
.SH FILES
.TP
.I /etc/attnd/attnd.jsonc
what the packaged service reads
.TP
.IR /usr/share/attnd/ * .jsonc
presets: geometries of models
.SH SEE ALSO
.BR attnd (8),
.BR attnd\-keys (5),
.BR attnctl (1)
TEXT
}

keys_file() {
    cat <<'TEXT'
.\" SPDX-License-Identifier: Apache-2.0
.\" Made by scripts/make_documents.sh (make documents) of the tables in server/keys.c: change those.
.TH ATTND-KEYS 5 "" attnd "File formats"
.SH NAME
attnd\-keys \- keys of clients of attnd
.SH DESCRIPTION
The file that
.I keys.file
of
.BR attnd.jsonc (5)
names: who may ask the daemon, for what, and how much of it. It is one JSON object with a list of entries, 1024 at most, in which comments
(// and /* */) are allowed:
.PP
.RS
.EX
{"keys": [
    {"name": "search", "scopes": ["infer"], "weight": 4,
     "sha256":
        "48b842fefd43ca0e0cd6b172221a75becb5984db3f3f5887715d2397f6e0328b",
     "quotas": {"sequences": 200, "blocks": 20000, "calls": 32}},
    {"name": "operator", "scopes": ["admin"],
     "sha256":
        "83405cd94827ecc52e1fa01c761a8876a54e64183b6159ffe6638a581a415678"}
]}
.EE
.RE
.PP
It has digests of keys, not keys.
.B attnctl key new search infer
makes a key of 256 random bits, which is kept nowhere else, and prints it with its entry. Members and quotas that do not exist are errors, which
.B attnd \-\-check\-config
names. The daemon's user must be able to read it. Nobody but the owner of the file may write it, and others than owner and group may not read
it: for the packaged service
.BR "install \-o attnd \-g attnd \-m 600 keys /etc/attnd/keys" .
.PP
SIGHUP has the daemon read it again. If it is wrong then, the keys stay as they are, and the log says why. An entry that has changed holds from the
next request on; of one that is gone calls end with 401, workloads are cancelled, and sequences and leases are removed.
.PP
A client shows its key as
.BR Authorization:\~Bearer\~ \fIKEY\fR.
One that shows none may do what its listener's
.I anonymous
says, has the weight 1, and no quotas.
.SH MEMBERS
TEXT
    "$attnd" --describe keys.file | awk -F'\t' "$as_roff"'
        /^quotas\./ && !quotas++ {
            printf ".SH QUOTAS\nOne that is used up is 429 (quota_exceeded); a request that alone is more than a whole one is 422 (invalid).\n"
        }
        { sub(/^quotas\./, "", $1); printf ".TP\n.B %s\n%s; %s\n.br\n%s\n", text($1), text($2), $3 == "" ? "must be there" : "absent: " text($3), text($4) }'
    cat <<'TEXT'
.SH SCOPES
.TP
.B read
look at what is its own, and at what the daemon does: the pool, steps, /metrics
.TP
.B infer
make sequences, leases and workloads, and compute; includes read
.TP
.B admin
everything: parameters, audit, drain, and what belongs to others; includes all
.TP
.B keep
sequences and leases that are never removed for not being used (idle_timeout_s: 0)
.SH SEE ALSO
.BR attnd (8),
.BR attnd.jsonc (5),
.BR attnctl (1)
TEXT
}

metrics >"$folder/METRICS.md"
keys >"$folder/attnd.jsonc.5"
keys_file >"$folder/attnd-keys.5"
