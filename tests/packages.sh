#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages named as arguments that are missing; does nothing when none is. No package is removed for them: apt fails instead.
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
# A machine that has just started may be installing something itself, and networks have their moments.
set -- -qq -oAcquire::Retries=5 -oDPkg::Lock::Timeout=600
apt-get update "$@"
# shellcheck disable=SC2086 # a list of words
DEBIAN_FRONTEND=noninteractive apt-get install -y "$@" --no-install-recommends --no-remove $missing >/dev/null
