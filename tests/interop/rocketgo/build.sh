#!/usr/bin/env bash
# Build the agent around the unmodified Go client that go.mod pins into OUTDIR (.cache/peers in the repository root).
set -euo pipefail
module=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
outdir=${1:-$module/../../../.cache/peers}
mkdir -p "$outdir"
outdir=$(cd "$outdir" && pwd)
cd "$module"
CGO_ENABLED=0 go build -trimpath -o "$outdir/rocketgo" .
