#!/usr/bin/env bash
# Runs the conformance suite against the servers of the next Debian.
#
#   tools/testbed/newer-servers.sh FOLDER [FILTER…]
#
# Installs that Debian into FOLDER (2 GB, made once and used again), and prints its servers' versions. Then builds the
# suite on this system, and runs it in FOLDER with a network of its own: once with Redis, and then the cases of Redis
# with Valkey. FILTERs choose cases, as in `cargo test -p fencelock-conformance --test engines -- FILTER…`. Needs Debian
# and root. Nothing else on the machine changes, but the package debootstrap is installed if it is missing. RELEASE=NAME
# takes another Debian.
set -euo pipefail

script=$(realpath "$0")
tree=$(dirname "$(dirname "$(dirname "$script")")")
release=${RELEASE:-trixie}
packages=(
    redis-server redis-tools valkey-server valkey-tools etcd-server etcd-client mariadb-server postgresql pgbouncer
    default-jre-headless zookeeper openssl iproute2 gcc libc6-dev
)
valkey=/opt/valkey-as-redis

die() {
    echo "newer-servers.sh: $*" >&2
    exit 1
}

# The suite runs redis-server and redis-cli. If $valkey comes first in PATH, these names are Valkey's programs.
install_servers() {
    local folder=$1 mirror
    mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' | sort -u | head -n 1)
    [[ -n $mirror ]] || die "apt knows no mirror of Debian; run: apt-get update"
    command -v debootstrap >/dev/null || apt-get install -yq --no-install-recommends debootstrap
    [[ -e $folder/etc/debian_version ]] || debootstrap --variant=minbase "$release" "$folder" "$mirror"
    # No server starts by itself, and PostgreSQL creates no cluster.
    printf '#!/bin/sh\nexit 101\n' >"$folder/usr/sbin/policy-rc.d"
    chmod +x "$folder/usr/sbin/policy-rc.d"
    mkdir -p "$folder/etc/postgresql-common" "$folder$valkey"
    echo 'create_main_cluster = false' >"$folder/etc/postgresql-common/createcluster.conf"
    inside "$folder" host env DEBIAN_FRONTEND=noninteractive \
        sh -c 'apt-get update -q && apt-get install -yq --no-install-recommends "$@" && apt-get clean' - "${packages[@]}"
    ln -sf /usr/bin/valkey-server "$folder$valkey/redis-server"
    ln -sf /usr/bin/valkey-cli "$folder$valkey/redis-cli"
    touch "$folder/servers-are-installed"
}

versions() {
    inside "$1" own sh -c 'redis-server --version; valkey-server --version; etcd --version | head -n 1; mariadbd --version 2>/dev/null
        /usr/lib/postgresql/*/bin/postgres --version; java -version 2>&1 | head -n 1
        dpkg-query -f "\${Package} \${Version}\n" -W zookeeper'
}

# Runs a command in the folder with its own mounts, which end with the last of its processes. The process ids are those
# of the machine, so that signals work as usual. NETWORK: `host`, or `own`, which has only the loopback interface.
inside() {
    local folder=$1 network=()
    [[ $2 == host ]] || network=(--net)
    shift 2
    unshare --mount "${network[@]}" "$script" --mounted "$folder" "${#network[@]}" "$@"
}

mounted() {
    local folder=$1 own_network=$2
    shift 2
    mount -t proc proc "$folder/proc"
    mount --rbind /dev "$folder/dev"
    mkdir -p "$folder$tree"
    mount --bind "$tree" "$folder$tree"
    # Where cargo builds, if that is outside the tree.
    if [[ -n ${CARGO_TARGET_DIR:-} ]]; then
        mkdir -p "$folder$CARGO_TARGET_DIR"
        mount --bind "$CARGO_TARGET_DIR" "$folder$CARGO_TARGET_DIR"
    fi
    ((own_network == 0)) || chroot "$folder" ip link set lo up
    local search=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    [[ -z ${WITH_VALKEY:-} ]] || search=$valkey:$search
    exec env -u TMPDIR PATH="$search" "$(command -v chroot)" "$folder" env -C "$PWD" "$@"
}

# Cargo builds on this system, and this script runs the program in the folder.
conformance() {
    local folder=$1 host
    shift
    host=$(rustc -vV | sed -n 's/^host: //p')
    host=${host//-/_}
    export "CARGO_TARGET_${host^^}_RUNNER=$script --run $folder"
    cargo test -p fencelock-conformance --test engines -- "$@"
}

case ${1:-} in
--mounted) mounted "${@:2}" ;;
--run) inside "$2" own "${@:3}" ;; # by cargo
'' | -*) die "name a folder; see the head of this script" ;;
*)
    ((EUID == 0)) || die "only root can mount and chroot"
    mkdir -p "$1"
    folder=$(realpath "$1")
    shift
    cd "$tree"
    [[ -e $folder/servers-are-installed ]] || install_servers "$folder"
    versions "$folder"
    conformance "$folder" "$@"
    [[ ${*:-redis} != *redis* ]] || WITH_VALKEY=1 conformance "$folder" "${@:-redis}"
    ;;
esac
