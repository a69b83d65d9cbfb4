#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh [--quick]: measure a folder of this machine's disk without a mount, through gaiafs, and through libfuse's example
# passthrough_ll, in turns: a table, JSON and a chart of what a mount costs (matrix.py; --help says more). Needs root.
#
# run.sh DIR [SIZE [SECONDS]]: measure any one folder, of a gaiafs mount or of any other filesystem.
# Runs the job files of this folder one after the other on one file of SIZE (256m) for SECONDS (5) each, prints a table,
# and takes the file away again. Kernel caches are left as fio does by default: its file's pages are dropped before each.
set -eu
exec </dev/null

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

die() {
    echo "run.sh: $1" >&2
    exit 1
}

case ${1:-} in
'' | -*)
    if [ "${1:-}" != --help ] && [ "${1:-}" != --list ]; then
        root=$(CDPATH='' cd -- "$here/../.." && pwd)
        # shellcheck source=examples/lib.sh
        . "$root/examples/lib.sh"
        require_root
        sh "$root/examples/packages.sh" run fio
        log=$(mktemp)
        build
        rm -f "$log"
    fi
    exec python3 -B "$here/matrix.py" "$@"
    ;;
esac

if [ $# -gt 3 ]; then
    die 'usage: run.sh DIR [SIZE [SECONDS]], for example run.sh /mnt/gaiafs 256m 5'
fi
[ -d "$1" ] || die "$1: no such folder"
[ -w "$1" ] || die "$1: it cannot be written to"
command -v fio >/dev/null || die 'fio is not installed (Debian: apt-get install fio)'
command -v python3 >/dev/null || die 'python3 is not installed'

folder=$(CDPATH='' cd -- "$1" && pwd)
file=$folder/gaiafs-fio.data
[ ! -e "$file" ] || die "$file is in the way"

# fio takes these from the environment into its job files; a colon is to be escaped there.
DIR=$(printf '%s' "$folder" | sed 's/:/\\:/g')
SIZE=${2:-256m}
RUNTIME=${3:-5}
export DIR SIZE RUNTIME

work=$(mktemp -d)
trap 'rm -rf "$work"; rm -f "$file"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

echo "fio on $folder, one file of $SIZE, $RUNTIME s each"
set --
for job in seq-write seq-read rand-write rand-read mmap-write mmap-read; do
    # A job that fails shows in the table.
    fio --output-format=json --output="$work/$job.json" "$here/$job.fio" >"$work/$job.log" 2>&1 ||
        sed "s/^/$job: /" "$work/$job.log" >&2
    set -- "$@" "$job=$work/$job.json"
done
python3 -B "$here/table.py" "$@"
