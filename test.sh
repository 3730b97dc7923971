#!/usr/bin/env bash
# Installs missing programs that the tests need, then runs the whole suite against real servers. With `--engine NAME`:
# the tests of one engine. With `--no-run`: builds what the whole suite needs. With other arguments: `cargo test` of the
# workspace with these arguments.
set -euo pipefail
cd "$(dirname "$0")"

# Debian's package for each program or file that the build or a test needs.
declare -A packages=(
    [redis-server]=redis-server [redis-cli]=redis-tools [openssl]=openssl [setpriv]=util-linux [python3]=python3 [cc]=gcc
    [etcd]=etcd-server [etcdctl]=etcd-client [protoc]=protobuf-compiler
    [/usr/include/google/protobuf/descriptor.proto]=libprotobuf-dev
    [mariadbd]=mariadb-server [mariadb-install-db]=mariadb-server [pg_ctlcluster]=postgresql [pgbouncer]=pgbouncer
    [java]=default-jre-headless [/usr/share/java/zookeeper.jar]=zookeeper [valgrind]=valgrind
)

# Debian keeps some servers in directories that only root has in PATH.
PATH=$PATH:/usr/sbin:/sbin
missing=()
for thing in "${!packages[@]}"; do
    command -v "$thing" >/dev/null || [[ -e $thing ]] || missing+=("${packages[$thing]}")
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

# Most tests wait: for servers to start, for leases to end. So more of them run at once than there are cores.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-4}

# With all stores. By default the command has only those stores that need no other software to build.
tests=(cargo test --workspace --features fencelock-cli/all)
longest=("${tests[@]}" --test engines --test planted --no-fail-fast)
build() {
    "${tests[@]}" --no-run
    "${longest[@]}" --no-run
}
if [[ $* == --no-run ]]; then
    build
    exit
fi
if [[ ${1-} != --engine ]] && (($#)); then
    exec "${tests[@]}" "$@"
fi

source .ci/beside.sh

# One engine: its cases of the list and, at the same time, its own tests and the lints of its crate.
if [[ ${1-} == --engine ]]; then
    engine=${2:?test.sh --engine NAME, as in engines/NAME}
    cases=("$engine" --skip http-)
    case $engine in
        redis) cases=(redis redlock --skip http-) ;;
        http) cases=(http-) ;;
    esac
    own=(--lib)
    for file in "engines/$engine/tests/"*.rs "engines/$engine/tests/"*/main.rs; do
        name=${file#"engines/$engine/tests/"}
        name=${name%/main.rs}
        [[ -e $file ]] && own+=("--test=${name%.rs}")
    done
    # Each command names both packages, so that their shared libraries are built once.
    tests=(cargo test -p "fencelock-$engine" -p fencelock-conformance)
    export RUST_TEST_THREADS=8
    "${tests[@]}" "${own[@]}" --test=engines --no-run
    beside cases "${tests[@]}" --test=engines -- "${cases[@]}"
    failed=0
    "${tests[@]}" "${own[@]}" --no-fail-fast || failed=$?
    CARGO_TARGET_DIR=target/lints cargo clippy -p "fencelock-$engine" --all-targets -- -D warnings || failed=$?
    await cases || failed=$?
    exit "$failed"
fi

build

# One group: the list of cases on every engine, the planted bugs, and the examples in the documentation. The other
# group, all other tests, takes as long. Each group mostly waits, so both run at the same time.
longest_and_examples() {
    local failed=0
    "${longest[@]}" || failed=$?
    "${tests[@]}" --doc --no-fail-fast || failed=$?
    return "$failed"
}
beside longest longest_and_examples
failed=0
# The tests run the examples, so these are built, too.
"${tests[@]}" --lib --bins --tests --no-fail-fast 2>&1 | tee "$output/others" || failed=$?
await longest || failed=$?
if ((failed)); then
    # Printed last, since a reader sees the end of a long output first.
    printf '\nWhat failed:\n'
    sed -n '/^failures:$/,/^test result/p; /^error/p' "$output/others" "$output/longest"
fi
exit "$failed"
