#!/usr/bin/env bash
# Fetch the peer of Spark's benchmarks, pinned below: Kafka's broker, and Spark with its Kafka source.
#
#   build.sh [OUTDIR]        OUTDIR defaults to .cache/peers/kafka in the repository root
#
# The Kafka source can be put together for Spark 4.0.0 only (the token provider of later ones is not published), so it
# gets a virtual environment of its own. What stands there from the same script is not made again.
# Needs Python 3.11 to 3.13, Maven and Maven Central; about 900 MB.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
outdir=${1:-$here/../../.cache/peers/kafka}
python=${PYTHON:-$here/../../.venv/bin/python}
mkdir -p "$outdir"
outdir=$(cd "$outdir" && pwd)

command -v mvn >/dev/null || { echo "Spark's benchmarks fetch Kafka with Maven: install it and a JDK (17 or newer)." >&2; exit 1; }

# Python packages: Spark, and what Kafka's latency case sends with.
packages=("pyspark==4.0.0" "kafka-python==2.3.3" "pyarrow==26.0.1" "pandas>=2.2,<3")

fingerprint=$({ cat "${BASH_SOURCE[0]}"; "$python" --version; } | sha256sum | cut -d' ' -f1)
[[ "$(cat "$outdir/.built-from" 2>/dev/null || true)" == "$fingerprint" ]] && exit 0
rm -f "$outdir/.built-from"

# fetch FOLDER EXCLUSIONS ARTIFACT...: jars of the artifacts with what they need, but for some groups.
fetch() {
  local name=$1 excluded=$2 folder=$outdir/$1 artifact group id version
  shift 2
  mkdir -p "$folder"
  {
    echo "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>"
    echo "<groupId>headrace.bench</groupId><artifactId>$name</artifactId><version>1</version><dependencies>"
    for artifact in "$@"; do
      IFS=: read -r group id version <<<"$artifact"
      echo "<dependency><groupId>$group</groupId><artifactId>$id</artifactId><version>$version</version>"
      echo "<exclusions>"
      for group in $excluded; do
        echo "<exclusion><groupId>$group</groupId><artifactId>*</artifactId></exclusion>"
      done
      echo "</exclusions></dependency>"
    done
    echo "</dependencies></project>"
  } >"$folder/pom.xml"
  echo "fetching $name" >&2
  rm -rf "$folder/lib"
  (cd "$folder" && mvn -q -B dependency:copy-dependencies -DoutputDirectory=lib -DincludeScope=runtime >&2)
}

fetch broker "" org.apache.kafka:kafka_2.13:4.1.1 org.apache.kafka:kafka-tools:4.1.1
# Spark brings these itself.
fetch source "org.apache.hadoop org.scala-lang" org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0

if ! "$outdir/venv/bin/python" -c '' 2>/dev/null; then
  rm -rf "$outdir/venv"
  "$python" -m venv "$outdir/venv"
fi
echo "installing ${packages[*]}" >&2
"$outdir/venv/bin/python" -m pip --disable-pip-version-check --quiet install "${packages[@]}"
echo "$fingerprint" >"$outdir/.built-from"
