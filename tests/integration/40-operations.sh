#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of docs/OPERATIONS.md, in order, as it stands, against its printed output; the daemons are those that it starts itself.
. tests/integration/lib.sh
. tests/integration/documents.sh
export TMPDIR=$WORK # of the folder that it makes
# The drain ends the daemon before the next command looks at what it has left.
sed '/^## Restore/q' docs/OPERATIONS.md >"$WORK/before"
sed -n '/^## Restore/,$p' docs/OPERATIONS.md >"$WORK/after"
check_document docs/OPERATIONS.md "$WORK/before" 18
check_document "docs/OPERATIONS.md, after the end" "$WORK/after" 3
finish
