#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages named as arguments that are missing; does nothing when none is.
set -eu
missing=
for package in "$@"; do
	dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ]; then
	echo "install$missing: root is needed" >&2
	exit 1
fi
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
