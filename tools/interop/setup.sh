#!/bin/sh
# Installs the foreign clients for the interoperability tests, each from its own registry, into target/interop (or the
# given directory). Also builds the packages of our own thin clients, and installs these packages. Does nothing that is
# already done.
#
# Needs python3 with venv, node with npm, curl, jq, a JDK, Chromium, Prometheus, and Debian's package of Curator. On
# Debian it installs them if they are missing.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
into=${1:-${CARGO_TARGET_DIR:-$here/../../target}/interop}

have() {
    command -v "$1" >/dev/null 2>&1
}

missing=
python3 -c 'import venv, ensurepip' >/dev/null 2>&1 || missing="$missing python3 python3-venv"
have node || missing="$missing nodejs"
have npm || missing="$missing npm"
have curl || missing="$missing curl"
have jq || missing="$missing jq"
have javac || missing="$missing default-jdk-headless"
have promtool || missing="$missing prometheus"
have chromium || missing="$missing chromium"
[ -e /usr/share/java/curator-recipes.jar ] || missing="$missing libcurator-recipes-java"
if [ -n "$missing" ]; then
    if ! have apt-get; then
        echo "setup.sh: install these first:$missing" >&2
        exit 1
    fi
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get update -q
    # shellcheck disable=SC2086 # a list of packages
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -q --no-install-recommends $missing
fi

mkdir -p "$into"

# A complete part has a copy of what it was made from.
if ! cmp -s "$here/clients/requirements.txt" "$into/requirements.txt"; then
    rm -rf "$into/venv"
    python3 -m venv "$into/venv"
    "$into/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/clients/requirements.txt"
    cp "$here/clients/requirements.txt" "$into/requirements.txt"
fi

if ! cmp -s "$here/clients/package.json" "$into/package.json.installed"; then
    rm -rf "$into/node_modules"
    cp "$here/clients/package.json" "$into/package.json"
    (cd "$into" && npm install --no-package-lock --no-audit --no-fund --loglevel=error)
    cp "$here/clients/package.json" "$into/package.json.installed"
fi

jars=/usr/share/java/curator-recipes.jar:/usr/share/java/curator-framework.jar:/usr/share/java/curator-client.jar
if ! cmp -s "$here/clients/Curator.java" "$into/java/Curator.java"; then
    rm -rf "$into/java"
    mkdir -p "$into/java"
    javac -cp "$jars:/usr/share/java/zookeeper.jar" -d "$into/java" "$here/clients/Curator.java"
    cp "$here/clients/Curator.java" "$into/java/Curator.java"
fi

# Our clients of the lock service as they are published: the packages are built, and then installed.
clients=$here/../../clients
sources() {
    (cd "$clients" && find . \( -name node_modules -o -name dist -o -name __pycache__ \) -prune -o -type f -print | LC_ALL=C sort |
        xargs cksum)
}
if [ "$(sources)" != "$(cat "$into/service/sources" 2>/dev/null)" ]; then
    rm -rf "$into/service"
    mkdir -p "$into/service/typescript"
    (cd "$clients/typescript" && npm ci --no-audit --no-fund --loglevel=error &&
        npm pack --loglevel=error --pack-destination "$into/service")
    # With the compiler, which checks the types as a user's compiler does.
    (cd "$into/service/typescript" && echo '{"private":true}' >package.json &&
        npm install --no-package-lock --no-audit --no-fund --loglevel=error "$into/service"/fencelock-*.tgz \
            "typescript@$(node -p "require('$clients/typescript/package.json').devDependencies.typescript")" \
            "@types/node@$(node -p "require('$clients/typescript/package.json').devDependencies['@types/node']")")
    python3 -m venv "$into/service/build"
    "$into/service/build/bin/pip" install --quiet --disable-pip-version-check build mypy
    (cd "$clients/python" && "$into/service/build/bin/mypy" --cache-dir=/dev/null)
    # The source distribution, and the wheel that is built from it.
    "$into/service/build/bin/python" -m build --outdir "$into/service" "$clients/python"
    python3 -m venv "$into/service/python"
    "$into/service/python/bin/pip" install --quiet --disable-pip-version-check --no-index "$into/service"/fencelock-*.whl
    sources >"$into/service/sources"
fi
