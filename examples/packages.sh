#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Install the Debian packages of sections of packages.txt that are missing: packages.sh SECTION...
# Says nothing and asks nobody when all are there; then it needs neither root nor a network.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

packages_of() {
    sed -n "/^\\[$1\\]\$/,/^\\[/{/^[a-z0-9]/p;}" "$here/packages.txt"
}

# The names of all that is installed, and what they provide (pkgconf stands in for pkg-config), each on its own line.
# ${...} is for dpkg-query to replace.
# shellcheck disable=SC2016
names=$(dpkg-query -W -f '${db:Status-Status} ${Package}, ${Provides}\n' 2>/dev/null |
    sed -n 's/^installed //p' | tr -s ', ' '\n' || true)

missing=
for section in "$@"; do
    for package in $(packages_of "$section"); do
        case "
$names
" in
        *"
$package
"*) ;;
        *) missing="$missing $package" ;;
        esac
    done
done
if [ -z "$missing" ]; then
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "packages.sh: this is no Debian: install what these packages hold by hand:$missing" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "packages.sh: missing packages:$missing: run this with sudo, or apt-get install them" >&2
    exit 1
fi
echo "installing:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
# The list is one of words.
# shellcheck disable=SC2086
apt-get install -q -y --no-install-recommends $missing
