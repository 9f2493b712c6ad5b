#!/usr/bin/env bash
# Makes tests/upgrade/state-VERSION.tar.xz: the broker's data and the state folder that `switchyard` of the version at
# hand leaves behind, for later versions to open. Run it once for each release, from the repository, before its tag:
#
#   tests/upgrade/make_state.sh
#
# Variables: SWITCHYARD (the command), PORT (the broker's; its controller takes the next one), OUT (the archive).
#
# What it holds: input of all three apps; word-count.v1 live after a promotion and a rollback, word-count.v2 its standby;
# stock-stats.v1 and large-orders.v1 live, the latter after a reset; a consumer group of word-count that has read a part,
# with what it got in follower.jsonl; records at the end that no release has read. All drivers stopped at a boundary.
set -euo pipefail
cd "$(dirname "$0")/../.."

SWITCHYARD=${SWITCHYARD:-.venv/bin/switchyard}
PORT=${PORT:-19592}
version=$("$SWITCHYARD" --version)
OUT=${OUT:-tests/upgrade/state-${version%.*}.tar.xz}
folder=$(mktemp -d)

export SWITCHYARD_STATE_DIR=$folder/state SWITCHYARD_BROKER_PORT=$PORT SWITCHYARD_BROKER_HEAP_MB=512
export SWITCHYARD_DRIVER_HEAP_MB=512 SWITCHYARD_TRIGGER_S=0.3 SWITCHYARD_STANDBY_TRIGGER_S=0.5
export SWITCHYARD_JARS_DIR=${SWITCHYARD_JARS_DIR:-$PWD/.switchyard/jars}
export JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1
# a busy machine only makes it slower
export SWITCHYARD_PROBE_TIMEOUT_S=900 SWITCHYARD_BOOT_TIMEOUT_S=900 SWITCHYARD_LEASE_TIMEOUT_S=60
export SWITCHYARD_SWITCH_TIMEOUT_S=240 SWITCHYARD_REQUEST_TIMEOUT_S=60

releases=(word-count.v1 word-count.v2 stock-stats.v1 large-orders.v1)

ended() {
    for release in "${releases[@]}"; do "$SWITCHYARD" stop "$release" --execute >/dev/null 2>&1 || true; done
    "$SWITCHYARD" down >/dev/null 2>&1 || true
    rm -rf "$folder"
}
trap ended EXIT

do_it() {
    echo "+ switchyard $*" >&2
    "$SWITCHYARD" "$@" >&2
}

# produce APP SEED RECORDS: disorder, late rows, duplicates and malformed records among them
produce() {
    do_it produce "$1" --seed "$2" --history "$3" --per-second 20 --late 0.01 --too-late 0.01 --malformed 0.01 \
        --tombstone 0.005 --duplicate 0.01
}

hydrate() {
    do_it start "$1" --execute
    do_it wait "$1" --for 1s --timeout 900s
}

follow() {
    echo "+ switchyard follow word-count --group upgrade $*" >&2
    "$SWITCHYARD" follow word-count --group upgrade --json "$@" >>"$SWITCHYARD_STATE_DIR/follower.jsonl"
}

do_it up
produce word-count 1 400
produce stock-stats 1 600
produce large-orders 1 400

do_it stage word-count --version 1 --execute
hydrate word-count.v1
do_it check word-count.v1
do_it promote word-count.v1 --execute
follow --from-beginning --max-records 150

do_it stage word-count --version 2 --same-as word-count.v1 --correction "the second of two, for an upgrade" --execute
hydrate word-count.v2
do_it diff word-count.v2
do_it check word-count.v2
do_it promote word-count.v2 --max-evidence-age 6h --reason "to the second" --execute
produce word-count 2 200
do_it rollback word-count --leaving word-count.v2 --reason "and back" --execute
follow --max-records 250
produce word-count 3 100
do_it wait word-count.v1 --for 1s --timeout 900s
do_it wait word-count.v2 --for 1s
do_it stop word-count.v1 --execute
do_it stop word-count.v2 --execute

do_it stage stock-stats --version 1 --execute
hydrate stock-stats.v1
do_it check stock-stats.v1
do_it promote stock-stats.v1 --execute
produce stock-stats 2 300
do_it wait stock-stats.v1 --for 1s
do_it stop stock-stats.v1 --execute

do_it stage large-orders --version 1 --execute
hydrate large-orders.v1
do_it check large-orders.v1
do_it promote large-orders.v1 --execute
do_it reset large-orders.v1 --to-earliest --stop --reason "once again" --execute
do_it wait large-orders.v1 --for 1s
do_it stop large-orders.v1 --execute

# what no release has read
produce word-count 4 50
produce stock-stats 3 100
produce large-orders 2 50

do_it status
do_it log --limit 1000 --json >"$folder/log.txt" 2>&1
do_it down
echo "$version" >"$SWITCHYARD_STATE_DIR/version"

# neither logs nor what names a process of this machine; the broker writes its configuration anew when it starts
tar --create --sparse --sort=name --owner=0 --group=0 --numeric-owner --directory "$SWITCHYARD_STATE_DIR" \
    --exclude=./logs --exclude=./run --exclude=./spark --exclude=./data-docs --exclude=./broker/lock \
    --exclude=./broker/broker.pid --exclude=./broker/server.properties --exclude=./broker/log4j2.properties . | xz -9e >"$OUT.new"
mv "$OUT.new" "$OUT"
ls -l "$OUT"
