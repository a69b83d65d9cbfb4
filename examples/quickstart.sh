#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The main job of gaiafs from nothing, on a fresh Debian 12: sudo sh examples/quickstart.sh
# Installs what is missing, builds, mounts a folder of real text, lets CPU programs and device programs work on the same
# files, and checks each step with plain tools (wc, tr, cmp, sha256sum, python3). Leaves nothing mounted behind.
# GAIA_DEVICE: the device to use, soft:0 if it is not set.
set -eu
exec </dev/null

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
# shellcheck source=examples/lib.sh
. "$root/examples/lib.sh"
device=${GAIA_DEVICE:-soft:0}
export GAIA_DEVICE="$device"
# The most that moves when a byte of it has changed.
unit_bytes=65536

# copy_text FOLDER LIMIT_KB FIND-ARGUMENTS...: real text from this machine into $data/text, each file under one flat
# name, until there are LIMIT_KB of it.
copy_text() {
    from=$1
    text_limit_kb=$2
    shift 2
    [ -d "$from" ] || return 0
    find "$from" -type f -size +1 "$@" 2>/dev/null | LC_ALL=C sort >"$work/found"
    while IFS= read -r file; do
        [ "$(du -sk "$data/text" | cut -f 1)" -lt "$text_limit_kb" ] || break
        name=$(printf '%s' "${file#/usr/}" | LC_ALL=C tr -c 'A-Za-z0-9.+\n-' '_')
        case $file in
        *.gz) zcat -- "$file" >"$data/text/${name%.gz}" 2>/dev/null || rm -f -- "$data/text/${name%.gz}" ;;
        *) cp -- "$file" "$data/text/$name" ;;
        esac
    done <"$work/found"
}

# Licences first, then documentation, then (docker images have hardly any) other text that Debian installs.
collect_text() {
    mkdir -p "$data/text"
    copy_text /usr/share/common-licenses 4096
    copy_text /usr/share/doc 8192 -size +8 -size -2000 '(' -name '*.gz' -o -name '*.txt' -o -name 'copyright' ')'
    copy_text /usr/share/perl 12288 -size +64 -size -4000 -name '*.p[lmo]*'
    copy_text /usr/lib/python3 12288 -size +64 -size -4000 -name '*.py'
    copy_text /usr/include 12288 -size +16 -name '*.h'
    # An empty file, and one that ends just on a page, are text, too.
    : >"$data/text/empty"
    head -c 8192 "$data/text/$(largest_texts | head -n 1)" >"$data/text/two-pages"
}

# The names of all texts, the largest first.
largest_texts() {
    (cd "$data/text" && find . -type f -printf '%s %f\n' | sort -k 1,1rn -k 2 | cut -d ' ' -f 2)
}

size_of() {
    stat -c %s -- "$1"
}

moved_in() {
    sed -n 's/^moved \([0-9]*\) bytes$/\1/p' "$1"
}

# What wc says to the same files, in their present state.
wc_says() {
    (cd "$mnt/text" && wc -lc -- *)
}

# same_as_wc FILE: what the device program printed is what wc prints, byte for byte.
same_as_wc() {
    wc_says >"$work/wc.out" && sed '/^moved [0-9]* bytes$/d' "$1" | cmp - "$work/wc.out"
}

count_once() {
    (cd "$mnt/text" && limited "$examples/count" --device "$device" --stat -- *) >"$1"
}

same_listing() {
    (cd "$data" && find . -printf '%p %y %m %s %l\n' | sort) >"$work/there"
    (cd "$mnt" && find . -path ./.gaiafs -prune -o -printf '%p %y %m %s %l\n' | sort) >"$work/here"
    cmp "$work/there" "$work/here"
}

step_a() {
    headline '(a) a device kernel counts the bytes and lines of all files'
    count_once "$work/first"
    note "$(sed -n 's/^ *\([0-9]*\) *\([0-9]*\) total$/\1 lines, \2 bytes counted on the device/p' "$work/first")"
    note "$(moved_in "$work/first") bytes were moved into the device; the files have $text_bytes"
    check "wc -lc says the same of all $text_files files and in total" same_as_wc "$work/first"
    check "all bytes went into the device's own memory" test "$(moved_in "$work/first")" -ge "$text_bytes"
    count_once "$work/second"
    note "run again: $(moved_in "$work/second") bytes were moved"
    check 'the second program counts the same' same_as_wc "$work/second"
    check "it moved nothing: the device's copy outlives the program" test "$(moved_in "$work/second")" -eq 0
}

# edit FILE OFFSET TEXT: overwrite bytes of a file in place, as editors of fixed records do. Adds to $changed_bytes.
edit() {
    printf '%s' "$3" | dd of="$mnt/text/$1" bs=1 seek="$2" conv=notrunc status=none
    add_units "$2" ${#3}
}

# append FILE TEXT
append() {
    append_at=$(size_of "$mnt/text/$1")
    printf '%s' "$2" >>"$mnt/text/$1"
    add_units "$append_at" ${#2}
}

# The units of 64 KiB that a change of $2 bytes at $1 touches.
add_units() {
    changed_bytes=$((changed_bytes + (($1 + $2 - 1) / unit_bytes - $1 / unit_bytes + 1) * unit_bytes))
    changes=$((changes + 1))
}

# check_moved FILE: no more than the units that changed, but something.
check_moved() {
    note "$changes changes by ordinary writes; $(moved_in "$1") bytes were moved, of $text_bytes"
    check 'wc agrees again' same_as_wc "$1"
    check "it moved no more than the $((changed_bytes / 1024)) KiB around the changes" \
        test "$(moved_in "$1")" -le "$changed_bytes"
    check 'but it did move something' test "$(moved_in "$1")" -gt 0
    changes=0
    changed_bytes=0
}

step_b() {
    headline '(b) legacy programs append and edit with ordinary writes'
    changes=0
    changed_bytes=0
    big=$(largest_texts | sed -n 1p)
    second=$(largest_texts | sed -n 2p)
    third=$(largest_texts | sed -n 3p)
    line='
a line that a shell wrote
'
    cd "$mnt/text"
    server_start "$examples/count" --device "$device" --serve -- *
    cd /
    server_ask "$work/serve.1"
    note "a device program maps all files and stays: $(moved_in "$work/serve.1") bytes were moved"
    check 'it counts as wc does' same_as_wc "$work/serve.1"

    edit "$big" 0 "$line"
    edit "$big" $((($(size_of "$mnt/text/$big") / 2) + 1000)) "$line$line"
    append "$second" "$line"
    append empty "$line"
    server_ask "$work/serve.2"
    check_moved "$work/serve.2"

    append "$second" "$line"
    truncate -s 100 "$mnt/text/$third"
    append "$third" "$line"
    server_ask "$work/serve.3"
    note 'and so again, with a file that became shorter:'
    check_moved "$work/serve.3"

    server_ask "$work/serve.4"
    check "nothing changed: nothing is moved" test "$(moved_in "$work/serve.4")" -eq 0
    check 'the device program ended well' server_stop

    edit "$second" 70000 "$line"
    count_once "$work/once"
    note 'a new device program after one more edit:'
    check_moved "$work/once"
}

upcase_all() {
    (cd "$mnt/text" && limited "$examples/upcase" --device "$device" -- *)
}

# The legacy way to the same result, on a copy.
# ASCII letters only are meant.
# shellcheck disable=SC2018,SC2019
tr_all() {
    mkdir "$work/upper"
    (cd "$mnt/text" && for file in *; do LC_ALL=C tr a-z A-Z <"$file" >"$work/upper/$file"; done)
}

same_files() {
    (cd "$1" && for file in *; do cmp -- "$file" "$2/$file" || exit 1; done)
}

# The sums of the files of a folder, in one.
sum_of() {
    (cd "$1" && sha256sum -- * | sha256sum)
}

step_c() {
    headline '(c) a device kernel turns all text to upper case, in place, through its mapping'
    tr_all
    note "$(upcase_all)"
    check "cmp: all $text_files files are as LC_ALL=C tr a-z A-Z makes them" same_files "$work/upper" "$mnt/text"
    check 'sha256sum says so, too' test "$(sum_of "$work/upper")" = "$(sum_of "$mnt/text")"
}

field() {
    sed -n "s/.*$2=\\([0-9]*\\).*/\\1/p" "$1"
}

# In python3, from what alternate.c says of its values, with none of its code.
independent_check() {
    python3 - "$1" "$2" "$3" <<'END'
import sys
path, rounds = sys.argv[1], (int(sys.argv[3]), int(sys.argv[2]))
data = open(path, "rb").read()
wrong = sum(byte != (167 * o + 13 * (o // 256) + 7 * (o // 65536) + 101 * rounds[o % 2] + 1) % 256
            for o, byte in enumerate(data))
print(len(data), "bytes,", wrong, "wrong")
sys.exit(wrong > 0)
END
}

# Both ran at the same time for most of the time.
overlapped() {
    begin=$(field "$1" start_ms)
    other=$(field "$2" start_ms)
    [ "$other" -lt "$begin" ] || begin=$other
    end=$(field "$1" end_ms)
    other=$(field "$2" end_ms)
    [ "$other" -gt "$end" ] || end=$other
    [ $((end - begin)) -ge 1000 ]
}

# alternate_on FILE KB HOW: the device writes the odd bytes, the CPU the even ones.
alternate_on() {
    file=$mnt/$1
    head -c "$2"K /dev/zero >"$file"
    limited "$examples/alternate" --device "$device" --odd --seconds 3 "$file" >"$work/odd" 2>&1 &
    odd_pid=$!
    limited "$examples/alternate" "$3" --even --seconds 3 "$file" >"$work/even" 2>&1 &
    even_pid=$!
    odd_result=0
    even_result=0
    wait "$odd_pid" || odd_result=$?
    wait "$even_pid" || even_result=$?
    odd_rounds=$(field "$work/odd" rounds)
    even_rounds=$(field "$work/even" rounds)
    note "$2 KiB: the device wrote its half ${odd_rounds:-?} times, the CPU ($3) ${even_rounds:-?} times"
    [ "$odd_result" -eq 0 ] || sed 's/^/           /' "$work/odd"
    [ "$even_result" -eq 0 ] || sed 's/^/           /' "$work/even"
    check 'the device found each of its stores again with read()' test "$odd_result" -eq 0
    check 'the CPU found each of its bytes again with read()' test "$even_result" -eq 0
    if [ -z "$odd_rounds" ] || [ -z "$even_rounds" ]; then
        return 0
    fi
    check 'they wrote at the same time' overlapped "$work/odd" "$work/even"
    check 'every byte is the last that its writer wrote' limited "$examples/alternate" --check \
        --odd-round "$odd_rounds" --even-round "$even_rounds" "$file"
    check 'python3 finds the same' independent_check "$file" "$odd_rounds" "$even_rounds"
}

step_d() {
    headline '(d) CPU and device write alternate bytes of the same pages at the same time'
    alternate_on alternate.write 32 --cpu
    alternate_on alternate.mmap 1024 --cpu-mmap
}

stat_table() {
    limited "$programs/gaiactl" stat "$mnt" >"$work/stat" && grep -qF "$device" "$work/stat"
}

stat_json() {
    limited "$programs/gaiactl" stat --json "$mnt" >"$work/stat.json" && python3 -m json.tool "$work/stat.json"
}

same_alternate() {
    for file in alternate.write alternate.mmap; do
        cmp "$work/$file" "$data/$file" || return 1
    done
}

step_e() {
    headline '(e) what the device did, and the end'
    check 'gaiactl stat has the device in its table' stat_table
    sed -n '1,13s/^/   /p' "$work/stat"
    note "... and so on: $(wc -l <"$work/stat") lines, see gaiactl stat"
    check 'gaiactl stat --json is JSON' stat_json
    check 'a daemon serves the mount' has_daemon "$mnt"
    for file in alternate.write alternate.mmap; do
        cp "$mnt/$file" "$work/$file"
    done
    check 'umount' unmount_gaiafs
    check 'nothing is mounted any more' not_mounted "$mnt"
    check 'no daemon is left' no_daemon "$mnt"
    check 'the mount point is empty' rmdir "$mnt"
    check "the data directory holds the device's text" same_files "$work/upper" "$data/text"
    check 'and what was written alternately' same_alternate
}

require_root
set_up quickstart
data=$work/data
mnt=$work/mnt
mkdir "$data" "$mnt"

headline 'packages and build (the first time takes some minutes)'
build
headline 'real text from this machine in a data directory, mounted'
collect_text
text_files=$(find "$data/text" -type f | wc -l)
text_bytes=$(cat "$data"/text/* | wc -c)
note "$text_files files, $text_bytes bytes"
mount_gaiafs "$data" "$mnt"
note "mount.gaiafs $data $mnt"
check 'the mount shows the same files' same_listing
step_a
step_b
step_c
step_d
step_e
finish quickstart
