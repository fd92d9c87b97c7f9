# shellcheck shell=bash
# Java and Kafka's jars, for scripts/kafka.
#
# Guarantees: a version's jars are fetched once and appear whole or not at all, however many starts want them at once.
# Takes from its caller: $state, $version, $bench, say, die, bring.
# Sets: $java, $libs (a class path with a star that Java expands).
# shellcheck disable=SC2154 # the caller assigns these

java_bin() {
  local java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  command -v "$java" >/dev/null || { bring "Java 17 or newer" default-jdk-headless; java=java; }
  readlink -f "$(command -v "$java")"
}

# ---- jars ----------------------------------------------------------------------------------------------------------

# Sets $libs to the class path of $version; fetches the jars once for all clusters.
need_libs() {
  java=$(java_bin)
  if [ -n "${KAFKA_HOME:-}" ]; then
    local jar
    jar=$(find "$KAFKA_HOME/libs/" -maxdepth 1 -name 'kafka-clients-[0-9]*.jar' 2>/dev/null | head -n 1)
    [ -n "$jar" ] || die "KAFKA_HOME=$KAFKA_HOME has no libs/kafka-clients-*.jar"
    version=${jar##*/kafka-clients-}
    version=${version%.jar}
    libs="$KAFKA_HOME/libs/*"
    return
  fi
  fetch_jars "$version" org.apache.kafka:kafka_2.13:"$version" org.apache.kafka:kafka-tools:"$version" \
    org.slf4j:slf4j-simple:1.7.36
  libs="$state/jars/$version/libs/*"
}

# Puts another Maven artifact, group:artifact:version, and what it needs in front of $libs.
add_libs() {
  fetch_jars "${1//:/_}" "$1"
  libs="$state/jars/${1//:/_}/libs/*:$libs"
}

# Fetches artifacts into $state/jars/$1/libs, unless they are there. The rest: group:artifact:version.
fetch_jars() {
  local into=$state/jars/$1
  shift
  [ -d "$into/libs" ] && return
  mkdir -p "$into"
  (
    flock 9
    [ -d "$into/libs" ] || run_maven "$into" "$@"
  ) 9>"$into/lock"
}

run_maven() {
  local into=$1 artifact group name number
  shift
  command -v mvn >/dev/null || bring "Maven, to fetch jars" maven default-jdk-headless
  say "fetching $* and what they need"
  {
    printf '%s' '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>' \
      '<groupId>keylane</groupId><artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>' \
      '<dependencies>'
    for artifact in "$@"; do
      IFS=: read -r group name number <<<"$artifact"
      pom_dependency "$group" "$name" "$number"
    done
    printf '%s\n' '</dependencies></project>'
  } >"$into/pom.xml"
  rm -rf "$into/libs.new"
  mvn -q -B -f "$into/pom.xml" dependency:copy-dependencies -DoutputDirectory="$into/libs.new" >&2 \
    || die "Maven could not fetch $*; KAFKA_HOME may name an unpacked Kafka instead"
  mv "$into/libs.new" "$into/libs"
}

# slf4j-simple is the one logging backend: with none, a broker that fails at its start says nothing at all.
pom_dependency() {
  printf '<dependency><groupId>%s</groupId><artifactId>%s</artifactId><version>%s</version><exclusions>' "$1" "$2" "$3"
  local other
  for other in slf4j-log4j12 slf4j-reload4j; do
    printf '<exclusion><groupId>org.slf4j</groupId><artifactId>%s</artifactId></exclusion>' "$other"
  done
  printf '</exclusions></dependency>\n'
}

log_level() { printf '%s' "-Dorg.slf4j.simpleLogger.defaultLogLevel=${KAFKA_LOG_LEVEL:-warn}"; }

# Runs a Java class or file in place of this shell: quick to start, or with --bench as Java itself would have it.
exec_tool() {
  local flags=(-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1)
  [ "$bench" = 0 ] || flags=()
  exec "$java" "${flags[@]}" "$(log_level)" -cp "$libs" "$@"
}

# Compiles a single-file program unless that was done since it changed; sets $program to its class and puts it in $libs.
compile() {
  local source=$1 javac into
  program=$(basename "$source" .java)
  into=$state/classes/$program-$(printf '%s' "$(readlink -f "$source") $libs" | cksum | cut -d ' ' -f 1)
  if [ ! "$into/$program.class" -nt "$source" ]; then
    javac=$(dirname "$java")/javac
    [ -x "$javac" ] || { bring "a Java compiler" default-jdk-headless; javac=javac; }
    mkdir -p "$into"
    # Whole or not at all: tests start several members at once.
    "$javac" -nowarn -d "$into/new.$$" -cp "$libs" "$source" >&2 || die "$source does not compile"
    mv "$into/new.$$"/*.class "$into/"
    rmdir "$into/new.$$"
  fi
  libs="$into:$libs"
}

# A class archive (AppCDS) halves the start. The first broker of a version records one and leaves it when it is stopped.
archive_path() {
  printf '%s' "$state/jars/$version/broker-$(printf '%s' "$java $libs" | cksum | cut -d ' ' -f 1).jsa"
}
