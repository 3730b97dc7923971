# To be sourced: runs commands in the background, and prints the output of each when it has ended.

output=$(mktemp -d)
declare -A running
beside() { # NAME COMMAND...: runs it in its own process group, so that all of it can be ended.
    set -m
    "${@:2}" >"$output/$1" 2>&1 &
    running[$1]=$!
    set +m
}
await() { # NAME: waits until it has ended, and prints its output.
    local status=0
    wait "${running[$1]}" || status=$?
    unset "running[$1]"
    cat "$output/$1"
    return "$status"
}
end_all() {
    for group in "${running[@]}"; do
        kill -- "-$group" 2>/dev/null || true
    done
    rm -rf "$output"
}
trap end_all EXIT
