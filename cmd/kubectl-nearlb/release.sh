#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# release.sh VERSION URL DIRECTORY: archives of kubectl-nearlb for each platform, their sums and the manifest for krew, into DIRECTORY.
# The same source, Go and version make the same bytes. URL is where the archives will be.
set -eu
version=$1 url=$2 to=$3
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$to"
platforms=$(mktemp)
work=$(mktemp -d)
trap 'rm -rf "$platforms" "$work"' EXIT
: >"$to/SHA256SUMS"
for os in linux darwin windows; do
	for arch in amd64 arm64; do
		program=kubectl-nearlb
		[ $os = windows ] && program=kubectl-nearlb.exe
		archive=kubectl-nearlb_${os}_$arch.tar.gz
		rm -rf "${work:?}"/*
		(cd "$here/../.." && GOOS=$os GOARCH=$arch "${GO:-go}" build -ldflags "-s -w -X github.com/nearlb/nearlb/pkg/kubectl.version=$version" -o "$work/$program" ./cmd/kubectl-nearlb)
		cp "$here/../../LICENSE" "$work/"
		tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a+rX,u+w,go-w -cf - . | gzip -n >"$to/$archive"
		sum=$(sha256sum "$to/$archive" | cut -d ' ' -f 1)
		echo "$sum  $archive" >>"$to/SHA256SUMS"
		cat >>"$platforms" <<ENTRY
  - selector:
      matchLabels:
        os: $os
        arch: $arch
    uri: $url/$archive
    sha256: $sum
    bin: $program
ENTRY
	done
done
sed -e "s|@VERSION@|$version|" -e "/@PLATFORMS@/{
r $platforms
d
}" "$here/krew.yaml" >"$to/nearlb.yaml"
