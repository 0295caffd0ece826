#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# version.sh version|commit|full|debian|time - what these sources are, in a repository and in an archive of `make dist`.
#
#   version   0.1.0: of config/version.h
#   commit    the first 12 digits of the commit, or "unknown"
#   full      0.1.0 at the tag v0.1.0, else 0.1.0+gCOMMIT
#   debian    0.1.0 at the tag, 0.1.0+git20261231235959.COMMIT behind it, 0.1.0~git... before it (UTC, when the commit was made): dpkg
#             orders builds by their commits' time, and the release where it belongs
#   time      when the commit was made, in seconds since 1970
set -eu
cd "$(dirname "$0")/.."
# In an archive git has replaced these.
archived_commit='$Format:%H$' archived_time='$Format:%ct$' archived_tag='$Format:%(describe:tags=true,match=v[0-9]*,abbrev=12)$'

is_repository() { [ -e .git ] && git rev-parse --verify -q HEAD >/dev/null 2>&1; }
say_version() { sed -n 's/.*ATTND_VERSION "\(.*\)"/\1/p' config/version.h; }
say_commit() {
    local id=unknown
    if is_repository; then
        id=$(git rev-parse HEAD)
    elif [[ $archived_commit != *Format* ]]; then
        id=$archived_commit
    fi
    echo "${id:0:12}"
}
is_tagged() {
    if is_repository; then
        git tag --points-at HEAD | grep -q -x "v$(say_version)"
    else
        [ "$archived_tag" = "v$(say_version)" ]
    fi
}
is_released() { # this commit, or one before it
    if is_repository; then
        git tag --merged HEAD | grep -q -x "v$(say_version)"
    else
        [[ $archived_tag = "v$(say_version)" || $archived_tag = "v$(say_version)-"* ]]
    fi
}
say_full() { if is_tagged; then say_version; else echo "$(say_version)+g$(say_commit)"; fi; }
say_time() {
    if is_repository; then
        git log -1 --format=%ct
    elif [[ $archived_time != *Format* ]]; then
        echo "$archived_time"
    else
        echo 0
    fi
}
say_debian() {
    local from='~'
    ! is_released || from=+
    if is_tagged; then say_version; else echo "$(say_version)${from}git$(date -u -d "@$(say_time)" +%Y%m%d%H%M%S).$(say_commit)"; fi
}
"say_$1"
