#!/usr/bin/env bash
# Print the home of a Java that Spark can use (17 or newer); install one where that is possible.
# Looks at JAVA_HOME, then PATH, then the usual folders. Everything but the answer goes to stderr.
set -euo pipefail

OLDEST=17

# Print the feature release of the java in home $1; fail if there is none that runs.
version_of() {
    [ -x "$1/bin/java" ] || return 1
    "$1/bin/java" -version 2>&1 |
        sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9][0-9]*\).*/\2/p' | head -n 1 | grep .
}

usable() {
    local version
    version=$(version_of "$1") && [ "$version" -ge "$OLDEST" ]
}

# Print the homes worth a look, best first: of the installed ones the oldest release that is enough.
candidates() {
    [ -z "${JAVA_HOME:-}" ] || echo "$JAVA_HOME"
    local java home
    if java=$(command -v java); then
        java=$(readlink -f "$java")
        echo "${java%/bin/java}"
    fi
    for home in /usr/lib/jvm/*/ /Library/Java/JavaVirtualMachines/*/Contents/Home/; do
        home=${home%/}
        usable "$home" && printf '%s %s\n' "$(version_of "$home")" "$home"
    done | sort -n | cut -d ' ' -f 2-
}

find_java() {
    local home
    while read -r home; do
        if usable "$home"; then
            echo "$home"
            return 0
        fi
    done < <(candidates)
    return 1
}

install_java() {
    if ! command -v apt-get >/dev/null; then
        echo "Java $OLDEST or newer is missing: install a JRE (for example Temurin $OLDEST) and set JAVA_HOME" >&2
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        echo "Java $OLDEST or newer is missing: run" >&2
        echo "    sudo apt-get update && sudo apt-get install -y openjdk-17-jre-headless" >&2
        echo "(or default-jre-headless where that package is not known)" >&2
        return 1
    fi
    echo "java: installing a headless JRE with apt-get" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    apt-get install -y -qq openjdk-17-jre-headless >&2 ||
        apt-get install -y -qq default-jre-headless >&2
}

if ! find_java; then
    install_java
    find_java || {
        echo "the Java that was installed is older than $OLDEST: install a newer one and set JAVA_HOME" >&2
        exit 1
    }
fi
