# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the scripts, before they change the folder.

# Absolute, without a command that is waited for (see the scripts).
from=$PWD
cd -- "${BASH_SOURCE[0]%/*}/.." && scripts=$PWD && cd -- "$from" || exit
[[ $0 != */* ]] || cd -- "${0%/*}/" || exit
self=$PWD/${0##*/}
cd -- "$from" || exit

# Goes on in a run of its own (see scripts/lib/run.py), in which the folder $STANCHION_RUN_FOLDER is there to be used:
#   enter_run NAME [OPTION OF run.py]... -- "$@"
enter_run() {
    # A script that is started by another one has a run within that one's.
    [[ ${STANCHION_RUN_SCRIPT-} != "$self" ]] || return 0
    # The system's before another one, which may be a script that passes over an INT.
    local python=/usr/bin/python3 name=$1 options=()
    [[ -x $python ]] || python=$(command -v python3) || { need_packages "scripts/$1" python3; python=/usr/bin/python3; }
    shift
    while [[ $1 != -- ]]; do options+=("$1"); shift; done
    shift
    # Signals that arrive while Python starts are pending until it handles them.
    exec env --block-signal=INT,TERM,HUP "$python" -B "$scripts/lib/run.py" --name "$name" "${options[@]}" -- "$self" "$@"
}

# Prints what is missing and ends with 13 when a program is not installed:  need NAME-OF-SCRIPT PROGRAM "WHAT TO RUN"
need() {
    command -v "$2" >/dev/null || { echo "$1: needs $2: $3" >&2; exit 13; }
}

# Ends with 13 when there is no cargo. Cargo itself refuses a compiler that is too old. Waits for no command, either.
need_cargo() {
    local line
    ! command -v cargo >/dev/null || return 0
    while read -r line; do [[ $line != rust-version* ]] || break; done <"$scripts/../Cargo.toml"
    echo "$1: needs cargo: install Rust ${line//[!0-9.]/} or newer, for example by https://rustup.rs" >&2
    exit 13
}

# Installs the Debian packages that are missing, as root; otherwise names them and ends with 13.
need_packages() {
    "$scripts/lib/packages" "$@" || exit
}

# A cargo subcommand of exactly this version, as `cargo NAME`; built into the target folder where the user has another
# version.
need_crate() {
    local name=$1 version=$2 tools
    tools=$(python3 -B -c 'import sys; sys.path.insert(0, sys.argv[1]); import built; print(built.target_directory("."))' \
        "$scripts/lib")/tools/$name
    [[ "$(cargo "$name" --version 2>/dev/null) " != "cargo-$name $version "* ]] || return 0
    export PATH=$tools/bin:$PATH
    [[ "$(cargo "$name" --version 2>/dev/null) " != "cargo-$name $version "* ]] || return 0
    echo "building cargo-$name $version, once"
    cargo install --locked --quiet --root "$tools" --version "$version" "cargo-$name"
}
