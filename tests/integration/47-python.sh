#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python package as it is installed: a wheel, in environments that have nothing but it and NumPy, the oldest that it takes and the newest.
. tests/integration/lib.sh
. tests/integration/documents.sh
export ATTND
build=$(dirname "$ATTND")
if [ ! -e "$build/lib/libattnd.so" ]; then
    lacks 'the Python package: libattnd is not built here'
    finish
fi
case $build in
    *san)
        echo 'skip the Python package: the library has a sanitizer'
        exit 0
        ;;
esac
python3 -m venv "$WORK/builder" >/dev/null 2>&1 && "$WORK/builder/bin/pip" install -q 'setuptools<81' wheel >/dev/null 2>&1 || {
    lacks 'the Python package: neither venv nor PyPI is to be had'
    finish
}
wheel=$(PYTHON=$WORK/builder/bin/python bash scripts/make_wheel.sh "$build/lib/libattnd.so" 0.0.1 "$WORK")
expect 'the wheel is for any Python 3' attnd-0.0.1-py3-none-manylinux "$(basename "$wheel" | sed 's/_.*//')"
for numpy in 'numpy<1.25' numpy; do
    env=$WORK/env-$numpy
    python3 -m venv "$env"
    if ! "$env/bin/pip" install -q --only-binary :all: "$numpy" >/dev/null 2>&1; then
        echo "skip the Python package with $numpy: there is none for this Python"
        continue
    fi
    "$env/bin/pip" install -q --no-index --no-deps "$wheel"
    (cd "$WORK" && "$env/bin/python" -W error -m unittest discover -q -s "$OLDPWD/clients/python/tests" 2>&1) >"$WORK/said"
    expect "its tests with $("$env/bin/python" -c 'import numpy; print("NumPy", numpy.__version__)')" OK \
        "$(tail -n 1 "$WORK/said" | sed 's/ (.*//')"
    grep -q '^OK' "$WORK/said" || cat "$WORK/said"
done

# ---- what the documents say, and the examples that need no torch
start_daemon --config config/demo.jsonc
for document in README.md docs/PYTHON.md clients/python/README.md; do
    check_python "$document" "$document" "$WORK/env-numpy/bin/python"
done
stop_daemon
expect 'first.py is what the README shows' "$(sed -n '/^```python/,/^```/p' README.md | grep -v '^```')" \
    "$(sed 1d clients/python/examples/first.py)"
expect "first.py prints what the README shows" "$(sed -n "/^forked/,/^largest/p" README.md | sed "s/NumPy .*/NumPy/")" \
    "$("$WORK/env-numpy/bin/python" clients/python/examples/first.py | sed "s/NumPy .*/NumPy/")"
expect 'shared_prefix.py' 'the same bits' "$("$WORK/env-numpy/bin/python" clients/python/examples/shared_prefix.py | sed -n 's/.*, the same/the same/p')"
