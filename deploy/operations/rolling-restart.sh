#!/bin/sh
# Restarts the brokers of a cluster one by one, each when all partitions have all their replicas in sync again.
#
#   rolling-restart.sh hw://a.example:6174,b.example:6174 'ssh broker%s systemctl restart headwater-broker' 1 2 3
#
# The command is run once for each broker, with its number in place of %s, and returns when the broker has stopped and was
# started again. A broker that is told to stop lets others lead first, so no write fails. The first broker that does not
# come back ends it: nothing is done to the others. How long it waits, in seconds, PATIENCE says.
set -eu

if [ $# -lt 3 ]; then
    echo "usage: $0 ADDRESS COMMAND ID..." >&2
    exit 2
fi
address=$1
command=$2
shift 2

in_sync() {
    left=${PATIENCE:-600}
    until hw cluster status "$address" > /dev/null 2>&1; do
        left=$((left - 1))
        if [ "$left" -le 0 ]; then
            echo "not all replicas are in sync: hw cluster status $address tells which" >&2
            exit 1
        fi
        sleep 1
    done
}

for broker in "$@"; do
    in_sync
    echo "restarting broker $broker"
    sh -c "$(printf '%s\n' "$command" | sed "s/%s/$broker/g")"
done
in_sync
echo "all brokers were restarted, and all replicas are in sync"
