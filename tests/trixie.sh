#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build and test in a userland of Debian 13, whose libfuse (3.17) knows passthrough: sudo sh tests/trixie.sh [FILES]
# FILES: nothing but the mount tests test_NAME.py of these names, NAME,NAME... The userland is made once and kept in
# build/trixie (or $GAIA_TRIXIE). Where none can be made this says why, and counts as one test skipped.
set -eu

top=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
root=${GAIA_TRIXIE:-$top/build/trixie}
files=${1:-}

skip() {
    echo "no Debian 13 userland: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "making one needs root"

# In a mount namespace of our own: what is mounted in the userland goes with the last process in it. But a copy of
# somebody else's mount would keep that alive after its umount: ours are let go below.
if [ "${GAIA_TRIXIE_INSIDE:-}" != "$$" ]; then
    command -v unshare >/dev/null || skip "no unshare here"
    unshare -m true 2>/dev/null || skip "no mount namespace can be had"
    exec unshare -m --propagation slave sh -c 'GAIA_TRIXIE_INSIDE=$$ exec sh "$@"' sh "$top/tests/trixie.sh" "$@"
fi

awk -v tests="${GAIA_TEST_DIR:-/var/tmp}/" 'index($2, tests) == 1 {print $2}' /proc/self/mounts | sort -r |
    while read -r other; do
        umount -l "$(printf %b "$other")" || true
    done

# The mirror that this machine's own packages come from.
mirror() {
    # $(...) is for apt to replace, and os-release is this machine's.
    # shellcheck disable=SC2016,SC1091
    apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' 2>/dev/null |
        awk -v name="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" '$2 == name && $3 == "main" {print $1; exit}'
}

make_userland() {
    command -v debootstrap >/dev/null || skip "no debootstrap here (sh examples/packages.sh tests installs it)"
    site=$(mirror)
    [ -n "$site" ] || skip "apt names no mirror"
    proxy=$(apt-config dump Acquire::http::Proxy --format '%v' 2>/dev/null)
    [ -z "$proxy" ] || export http_proxy="$proxy"
    if grep -qF " $root/" /proc/self/mountinfo; then # what is mounted there would be deleted, too
        skip "something is mounted in $root"
    fi
    rm -rf "$root"
    mkdir -p "$root"
    if ! debootstrap --variant=minbase trixie "$root" "$site" >"$root.log" 2>&1; then
        tail -n 3 "$root.log"
        rm -rf "$root"
        skip "debootstrap failed (no network?): $root.log"
    fi
}

enter() {
    chroot "$root" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TMPDIR=/tmp \
        GAIA_GATE="${GAIA_GATE:-}" GAIA_AGAIN="${GAIA_AGAIN:-}" GAIA_TEST_SEED="${GAIA_TEST_SEED:-0}" GAIA_TEST_OPTIONS=passthrough=all DEBIAN_FRONTEND=noninteractive "$@"
}

[ -e "$root/ready" ] || make_userland
mount --bind "$root" "$root" # so that its / is a mount: tests in it have mount namespaces of their own
mount -t proc proc "$root/proc"
ln -sfn ../proc/self/mounts "$root/etc/mtab" # fusermount3 looks there
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mkdir -p "$root/var/tmp" "$root/gaiafs"
mount --bind /var/tmp "$root/var/tmp"

if [ ! -e "$root/ready" ]; then
    cp /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null || true
    # The virtual machine, the model, fio and other programs are the other userland's, and so is make check-long.
    packages=$(sed -n '/^\[run\]$/,/^\[long\]$/p' "$top/examples/packages.txt" |
        grep -E '^[a-z0-9]' | grep -vxE 'debootstrap|fio|git|gnuplot-nox|qemu-system-x86|spin' | tr '\n' ' ')
    # The list is one of words.
    # shellcheck disable=SC2086
    if ! { enter apt-get update -q && enter apt-get install -q -y -o Dpkg::Options::=--force-unsafe-io --no-install-recommends $packages; } \
        >"$root.log" 2>&1; then
        tail -n 3 "$root.log"
        skip "its packages could not be installed: $root.log"
    fi
    touch "$root/ready"
fi

# The sources as they are, beside what was built of them the last time.
find "$root/gaiafs" -mindepth 1 -maxdepth 1 ! -name build ! -name 'libgaia.so*' ! -name gaiactl ! -name mount.gaiafs \
    -exec rm -rf {} +
tar -C "$top" --exclude=./build --exclude=./.git --exclude='./libgaia.so*' --exclude=./gaiactl --exclude=./mount.gaiafs \
    -cf - . | tar -C "$root/gaiafs" -xf -
# Device code knows no libfuse.
needs=tests what='--without gpu'
if [ -n "$files" ]; then
    needs=mount-tools what="--mounts --files $files"
fi
enter make -C /gaiafs -j"$(nproc)" "$needs" SANITIZE="${SANITIZE:-}"
enter /gaiafs/mount.gaiafs --version
enter make -C /gaiafs check NEEDS="$needs" SANITIZE="${SANITIZE:-}" CHECK="$what"
