# Shared by the scripts here: a temporary environment, and a comparison with the output that was seen.
# shellcheck shell=sh
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# install PACKAGE==VERSION ...: put pinned packages into the temporary environment.
install() {
    "${PYTHON:-python3}" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip install -q --disable-pip-version-check "$@" 2>"$work/pip.log" ||
        { cat "$work/pip.log" >&2; exit 2; }
}

# expect OUTPUT: run the Python program on standard input and fail if it prints anything but OUTPUT.
expect() {
    "$work/venv/bin/python" - >"$work/out"
    cat "$work/out"
    printf '%s\n' "$1" | diff -u - "$work/out" >"$work/diff" && return
    echo "The behaviour changed (- seen then, + seen now):" >&2
    cat "$work/diff" >&2
    exit 1
}
