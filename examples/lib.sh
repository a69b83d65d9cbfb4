# SPDX-License-Identifier: Apache-2.0
# What the example scripts share; they set `root` to the project's folder, then read this file.
# shellcheck shell=sh disable=SC2034
#
#   set_up NAME             a work folder ($work) that goes away at exit, with all that was started and mounted
#   build                   packages, programs ($programs) and examples ($examples)
#   mount_gaiafs DATA MNT   and unmount_gaiafs, daemon_pid
#   headline, note, check, finish   what is printed, and counting what passed
#   server_start, server_ask, server_stop   a long-lived device program that runs again when it is told to

: "${root:?}"
# For the programs of another build (with a sanitizer): both of these, and nothing is built here.
programs=${GAIA_PROGRAMS:-$root}
examples=${GAIA_EXAMPLES:-$root/build/gcc/examples}
log=
work=
mounted=
server_pid=
passed=0
failed=0
failures=
# The headline that was printed last; empty when all has been said.
step=start
# Nothing here takes longer; a hang is a failure.
limit_s=300

# What plain tools print is compared: wc says "total" in the language of the user.
export LC_ALL=C

# Threads that wait for each other must not take the cores from those that work.
export OMP_WAIT_POLICY=passive

headline() {
    step=$1
    printf '\n== %s\n' "$1"
}

note() {
    printf '   %s\n' "$*"
}

# check TEXT COMMAND...: run a command that is to succeed. What it prints is shown when it fails.
check() {
    check_text=$1
    shift
    if "$@" >"$work/check.log" 2>&1; then
        passed=$((passed + 1))
        printf '   ok      %s\n' "$check_text"
    else
        failed=$((failed + 1))
        failures="$failures
   $check_text"
        printf '   FAILED  %s\n' "$check_text"
        printf '           (%s)\n' "$*"
        sed 's/^/           /' "$work/check.log" | head -n 20
    fi
}

# The last line, and the exit code.
finish() {
    step=
    if [ "$failed" -gt 0 ]; then
        printf '\n%s: %d of %d checks FAILED:%s\n' "$1" "$failed" "$((passed + failed))" "$failures"
        exit 1
    fi
    printf '\n%s: all %d checks passed\n' "$1" "$passed"
}

# die TEXT: it can't go on.
die() {
    printf '%s: %s\n' "${0##*/}" "$1" >&2
    exit 1
}

limited() {
    timeout --foreground -k 10 "$limit_s" "$@"
}

set_up() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/gaiafs-$1.XXXXXX")
    log=$work/build.log
    trap clean_up EXIT
    trap 'exit 129' HUP
    trap 'exit 130' INT
    trap 'exit 141' PIPE
    trap 'exit 143' TERM
}

# What a script has made outside of $work, and takes away when it ends: for it to define.
tidy() {
    :
}

clean_up() {
    result=$?
    trap - EXIT HUP INT PIPE TERM
    set +e
    for pid in $server_pid $(jobs -p); do
        kill "$pid" 2>/dev/null
    done
    wait
    tidy
    if [ -n "$mounted" ]; then
        umount "$mounted" 2>/dev/null || umount -l "$mounted"
    fi
    # Never through a mount that is still there.
    if [ -n "$work" ]; then
        rm -rf --one-file-system "$work"
    fi
    if [ "$result" -ne 0 ] && [ -n "$step" ]; then
        printf '%s: FAILED, stopped at: %s\n' "${0##*/}" "$step" >&2
        [ "$result" -ge 128 ] || result=1
    fi
    exit "$result"
}

require_root() {
    [ "$(id -u)" = 0 ] || die "it installs packages and mounts: run it as root (sudo sh $0)"
    [ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] || die 'there is no /dev/fuse: this kernel or this container has no FUSE'
}

# What root builds belongs to whoever the project's folder belongs to.
build() {
    [ -z "${GAIA_EXAMPLES:-}" ] || return 0
    sh "$root/examples/packages.sh" run
    if ! make -C "$root" CC=gcc -j "$(nproc)" all examples >"$log" 2>&1; then
        tail -n 40 "$log" >&2
        die 'the build failed'
    fi
    (cd "$root" && chown -hR --reference=. build mount.gaiafs gaiactl libgaia.so*) || true
}

is_mounted() {
    findmnt -n --mountpoint "$1"
}

not_mounted() {
    ! is_mounted "$1"
}

mount_gaiafs() {
    mounted=$2
    limited "$programs/mount.gaiafs" "$1" "$2" </dev/null
    is_mounted "$2" >/dev/null || die "mount.gaiafs came back, but nothing is mounted at $2"
}

# The daemons of a mount point: mount.gaiafs has it among its arguments.
daemon_pid() {
    for process in /proc/[0-9]*; do
        if [ "$(cat "$process/comm" 2>/dev/null)" = mount.gaiafs ] &&
            tr '\0' '\n' 2>/dev/null <"$process/cmdline" | grep -qxF "$1"; then
            echo "${process#/proc/}"
        fi
    done
}

has_daemon() {
    [ -n "$(daemon_pid "$1")" ]
}

# It may take a moment to end after the umount.
no_daemon() {
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
        has_daemon "$1" || return 0
        sleep 0.5
    done
    echo "still running: $(daemon_pid "$1")"
    return 1
}

unmount_gaiafs() {
    limited umount "$mounted"
    mounted=
}

# server_start COMMAND...: told by a line on its standard input, it answers with lines, the last begins with
# "moved " or has " moved=" in it.
server_start() {
    rm -f "$work/server.in" "$work/server.out"
    mkfifo "$work/server.in" "$work/server.out"
    limited "$@" <"$work/server.in" >"$work/server.out" 2>"$work/server.err" &
    server_pid=$!
    exec 3>"$work/server.in" 4<"$work/server.out"
}

# server_ask FILE: run again; the answer goes to FILE.
server_ask() {
    : >"$1"
    echo again >&3
    while IFS= read -r answer <&4; do
        printf '%s\n' "$answer" >>"$1"
        case $answer in
        'moved '* | *' moved='*) return 0 ;;
        esac
    done
    cat "$work/server.err" >&2
    die 'the device program ended before it was told to'
}

# Ends by itself at the end of its input. Its exit code.
server_stop() {
    exec 3>&-
    server_result=0
    wait "$server_pid" || server_result=$?
    server_pid=
    exec 4<&-
    cat "$work/server.err" >&2
    return "$server_result"
}
