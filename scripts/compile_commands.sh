#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compile_commands.sh - of the commands on standard input those that compile a C source of ours, as clang's tools read them. (Not there are
# sources that make does not compile here: the example, the stubs of tests/cuda, kernels/cuda/absent.c where CUDA's headers are.)
sed ':a; /\\$/ {N; s/\\\n//; ba}' | awk -v folder="$PWD" '
    $1 ~ /(cc|clang)$/ {
        for (i = 2; i <= NF && $i !~ /^[a-z].*\.c$/; i++) continue
        if (i > NF || seen[$i]++) next
        file = $i
        gsub(/[ \t]+/, " ")
        gsub(/\\/, "\\\\")
        gsub(/"/, "\\\"")
        printf "%s{\"directory\": \"%s\", \"file\": \"%s\", \"command\": \"%s\"}", (n++ ? ",\n" : "[\n"), folder, file, $0
    }
    END { print n ? "\n]" : "[]" }'
