#!/usr/bin/env bash
# Fetch the unmodified RocketMQ clients, servers and tools, pinned below, and compile the agent for each client.
#
#   build.sh [OUTDIR]        OUTDIR defaults to .cache/peers/java in the repository root
#
# What stands there from the same script and agent is not made again. Needs a JDK (javac), Maven and Maven Central.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
outdir=${1:-$here/../../../.cache/peers/java}
mkdir -p "$outdir"
outdir=$(cd "$outdir" && pwd)

for tool in javac mvn; do
  command -v "$tool" >/dev/null || { echo "The RocketMQ interop tests need $tool: install a JDK (17 or newer) and Maven." >&2; exit 1; }
done

# Folder and what stands in it. Brokers and name servers of 4.9.8 are not published, 4.9.7 and 5.5.0 are.
peers=(
  "client-4.9.8 org.apache.rocketmq:rocketmq-client:4.9.8 org.apache.rocketmq:rocketmq-acl:4.9.8"
  "client-5.5.0 org.apache.rocketmq:rocketmq-client:5.5.0"
  "client-3.2.6 com.alibaba.rocketmq:rocketmq-client:3.2.6"
  "server-4.9.7 org.apache.rocketmq:rocketmq-namesrv:4.9.7 org.apache.rocketmq:rocketmq-broker:4.9.7 org.apache.rocketmq:rocketmq-tools:4.9.7"
  "server-5.5.0 org.apache.rocketmq:rocketmq-namesrv:5.5.0 org.apache.rocketmq:rocketmq-broker:5.5.0 org.apache.rocketmq:rocketmq-tools:5.5.0"
  "example-4.6.0 org.apache.rocketmq:rocketmq-example:4.6.0"
)

fingerprint=$({ cat "${BASH_SOURCE[0]}" "$here/RocketAgent.java" "$here/AdminAgent.java"; javac -version; } 2>&1 | sha256sum | cut -d' ' -f1)
[[ "$(cat "$outdir/.built-from" 2>/dev/null || true)" == "$fingerprint" ]] && exit 0
rm -f "$outdir/.built-from"

fetch() {
  local name=$1 folder=$outdir/$1 artifact group id version
  shift
  mkdir -p "$folder"
  local wanted="$*"
  [[ "$(cat "$folder/.fetched" 2>/dev/null || true)" == "$wanted" ]] && return
  {
    echo "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>"
    echo "<groupId>headrace.interop</groupId><artifactId>$name</artifactId><version>1</version><dependencies>"
    for artifact in "$@"; do
      IFS=: read -r group id version <<<"$artifact"
      echo "<dependency><groupId>$group</groupId><artifactId>$id</artifactId><version>$version</version></dependency>"
    done
    echo "</dependencies></project>"
  } >"$folder/pom.xml"
  echo "fetching $name" >&2
  (cd "$folder" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib -DincludeScope=runtime >&2)
  echo "$wanted" >"$folder/.fetched"
}

# Keep the lines that this version has: "//#if modern", "//#if 4.9.8" ... "//#else" ... "//#endif".
agent_for() {
  awk -v version="$1" '
    BEGIN { keep = 1 }
    /^ *\/\/#if / { keep = ($2 == version) || ($2 == "modern" && version != "3.2.6"); next }
    /^ *\/\/#else/ { keep = !keep; next }
    /^ *\/\/#endif/ { keep = 1; next }
    keep { print }' "$here/RocketAgent.java"
}

for peer in "${peers[@]}"; do
  # shellcheck disable=SC2086  # words are what they are split into
  fetch $peer
done

for version in 4.9.8 5.5.0 3.2.6; do
  folder=$outdir/client-$version
  rm -rf "$folder/classes" && mkdir -p "$folder/classes" "$folder/source"
  agent_for "$version" >"$folder/source/RocketAgent.java"
  [[ $version == 3.2.6 ]] && sed -i 's/org\.apache\.rocketmq/com.alibaba.rocketmq/' "$folder/source/RocketAgent.java"
  echo "compiling the agent for $version" >&2
  javac -nowarn -Xlint:none -cp "$folder/lib/*" -d "$folder/classes" "$folder/source/RocketAgent.java" 2>&1 | { grep -v '^Note:' >&2 || true; }
  [[ -f $folder/classes/RocketAgent.class ]]
done
for version in 4.9.7 5.5.0; do
  folder=$outdir/server-$version
  mkdir -p "$folder/classes"
  javac -nowarn -Xlint:none -cp "$folder/lib/*" -d "$folder/classes" "$here/AdminAgent.java"
done
echo "$fingerprint" >"$outdir/.built-from"
