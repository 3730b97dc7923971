#!/usr/bin/env bash
# Installs what the tests need and is not there yet, then runs the whole suite against real servers.
set -euo pipefail
cd "$(dirname "$0")"

# Debian's package for each program that the tests start.
declare -A packages=([redis-server]=redis-server [openssl]=openssl [setpriv]=util-linux [python3]=python3)

missing=()
for program in "${!packages[@]}"; do
    command -v "$program" >/dev/null || missing+=("${packages[$program]}")
done
if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null; then
        echo "test.sh: please install: ${missing[*]}" >&2
        exit 1
    fi
    sudo=()
    ((EUID == 0)) || sudo=(sudo)
    export DEBIAN_FRONTEND=noninteractive
    "${sudo[@]}" apt-get update -q
    "${sudo[@]}" apt-get install -yq --no-install-recommends "${missing[@]}"
fi

cargo test --workspace --exclude fencelock-interop "$@"
