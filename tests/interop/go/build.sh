#!/usr/bin/env bash
# Build the unmodified NSQ programs pinned in go.mod into OUTDIR.
#
#   build.sh [OUTDIR]        OUTDIR defaults to .cache/peers in the repository root
#
# What stands in OUTDIR from the same go.mod, go.sum and Go release is not built again.
set -euo pipefail

module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
outdir=${1:-$module/../../../.cache/peers}
mkdir -p "$outdir"
outdir=$(cd "$outdir" && pwd)
cd "$module"

stamp=$outdir/.built-from
fingerprint=$({ cat go.mod go.sum; go env GOVERSION GOOS GOARCH; } | sha256sum | cut -d' ' -f1)

# The stamp goes first: a build that is interrupted must not leave old programs under a new stamp.
if [[ "$(cat "$stamp" 2>/dev/null || true)" != "$fingerprint" ]]; then
  rm -f "$stamp"
  stale=yes
else
  stale=no
fi

# The programs are the main packages that tools.go imports: one list, kept there.
packages=$(sed -n 's|^\t_ "\(github.com/nsqio/nsq/.*\)"$|\1|p' tools.go)
for package in $packages; do
  program=$outdir/${package##*/}
  if [[ $stale == yes || ! -x $program ]]; then
    echo "building ${package##*/}" >&2
    CGO_ENABLED=0 go build -trimpath -o "$program" "$package"
  fi
done
echo "$fingerprint" >"$stamp"
